//! Addresses, socket families, and unix sockets.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr as UnixAddress, UnixListener, UnixStream};
use std::time::Duration;

use super::{Report, argument};
use crate::calls::Argument::{Memory, Number};
use crate::calls::call;

/// Arguments: a port of the host's loopback.
pub(super) fn addresses(report: &mut Report, arguments: &[String]) -> io::Result<()> {
    let port: u16 = argument(arguments, 0)?.parse().map_err(io::Error::other)?;
    let targets = [
        ("127.0.0.1", port),
        ("127.0.0.2", port),
        ("::1", port),
        ("0.0.0.0", port),
        ("169.254.169.254", 80),
        ("169.254.170.2", 80),
        ("fd00:ec2::254", 80),
        ("10.0.0.1", 53),
        ("192.168.0.1", 80),
        ("192.0.2.1", 443),
        ("2001:db8::1", 443),
    ];
    for (host, port) in targets {
        let address = SocketAddr::new(host.parse::<IpAddr>().map_err(io::Error::other)?, port);
        // The bound is for a sandbox that would let packets out to nowhere.
        let connected = TcpStream::connect_timeout(&address, Duration::from_secs(20));
        report.refused(format_args!("connect to {address}"), connected);
        if !address.ip().is_loopback() && !address.ip().is_unspecified() {
            let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
            let sent = UdpSocket::bind(any).and_then(|socket| socket.send_to(b"x", address));
            report.refused(format_args!("send to {address}"), sent);
        }
    }
    Ok(())
}

/// Families and types of sockets that reach further than the network namespace, or into old code.
pub(super) fn families(report: &mut Report, _: &[String]) -> io::Result<()> {
    for family in 3..=46 {
        if family == libc::AF_INET6 || family == libc::AF_NETLINK {
            continue;
        }
        for kind in [libc::SOCK_STREAM, libc::SOCK_DGRAM, libc::SOCK_RAW, libc::SOCK_SEQPACKET] {
            let arguments = [Number(family.into()), Number(kind.into()), Number(0), Memory(&[])];
            report.refused(format_args!("family {family}"), call(libc::SYS_socket, &arguments));
            report.refused(format_args!("pair of family {family}"), call(libc::SYS_socketpair, &arguments));
        }
    }
    for family in [libc::AF_INET, libc::AF_INET6] {
        for protocol in [1, 6, 255] {
            let arguments = [Number(family.into()), Number(libc::SOCK_RAW.into()), Number(protocol)];
            report.refused(format_args!("raw socket {family}"), call(libc::SYS_socket, &arguments));
        }
    }
    Ok(())
}

/// Arguments: paths of unix sockets of the host.
pub(super) fn unix_sockets(report: &mut Report, arguments: &[String]) -> io::Result<()> {
    argument(arguments, 0)?;
    for path in arguments {
        report.refused(format_args!("connect to {path}"), UnixStream::connect(path));
    }
    for path in
        ["/run/docker.sock", "/var/run/docker.sock", "/run/dbus/system_bus_socket", "/run/systemd/private"]
    {
        report.refused(format_args!("connect to {path}"), UnixStream::connect(path));
    }
    Ok(())
}

/// Serves an abstract name until its input ends; a client of the same sandbox must reach it.
pub(super) fn serve_abstract(report: &mut Report, arguments: &[String]) -> io::Result<()> {
    let address = UnixAddress::from_abstract_name(argument(arguments, 0)?)?;
    let listener = UnixListener::bind_addr(&address)?;
    listener.set_nonblocking(true)?;
    let mut own = UnixStream::connect_addr(&address)?;
    let (mut accepted, _) = listener.accept()?;
    own.write_all(b"x")?;
    let mut byte = [0; 1];
    accepted.read_exact(&mut byte)?;
    report.holds("a sandbox's own abstract sockets work", byte == *b"x");
    writeln!(io::stdout(), "ready")?;
    io::stdin().read_to_end(&mut Vec::new())?;
    let nobody = matches!(listener.accept(), Err(error) if error.kind() == io::ErrorKind::WouldBlock);
    report.holds("nobody else came", nobody);
    Ok(())
}

/// Arguments: abstract names of the host and of other sandboxes.
pub(super) fn connect_abstract(report: &mut Report, arguments: &[String]) -> io::Result<()> {
    argument(arguments, 0)?;
    for name in arguments {
        let address = UnixAddress::from_abstract_name(name)?;
        report.refused(format_args!("connect to @{name}"), UnixStream::connect_addr(&address));
        let socket = std::os::unix::net::UnixDatagram::unbound()?;
        report.refused(
            format_args!("send to @{name}"),
            socket.connect_addr(&UnixAddress::from_abstract_name(format!("{name}-datagram"))?),
        );
    }
    Ok(())
}
