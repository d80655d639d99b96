//! Connections from outside to a port on the loopback inside.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

/// Starts connecting; the host waits for the connection to stand, so that a slow listener holds nobody
/// up here. IPv4 first, then IPv6.
pub(super) fn open(port: u16) -> io::Result<OwnedFd> {
    let addresses =
        [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))];
    let mut failure = io::Error::from(io::ErrorKind::ConnectionRefused);
    for address in addresses {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let attempt = rustix::net::socket_with(family, SocketType::STREAM, flags, None).and_then(|socket| {
            match rustix::net::connect(&socket, &address) {
                Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(socket),
                Err(error) => Err(error),
            }
        });
        match attempt {
            Ok(socket) => return Ok(socket),
            Err(error) => failure = error.into(),
        }
    }
    Err(failure)
}
