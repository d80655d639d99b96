//! Memory and queues that processes share by name.

use std::fs::File;
use std::io;

use super::{Report, argument};
use crate::calls::Argument::Number;
use crate::calls::{call, open_message_queue};

/// Arguments: the key of System V objects, the name of a queue, the name of a file in shared memory.
pub(super) fn objects(report: &mut Report, arguments: &[String]) -> io::Result<()> {
    let key: i64 = argument(arguments, 0)?.parse().map_err(io::Error::other)?;
    let (queue, file) = (argument(arguments, 1)?, argument(arguments, 2)?);
    report.refused("shared memory by key", call(libc::SYS_shmget, &[Number(key), Number(0), Number(0)]));
    report.refused("semaphores by key", call(libc::SYS_semget, &[Number(key), Number(0), Number(0)]));
    report.refused("message queue by key", call(libc::SYS_msgget, &[Number(key), Number(0)]));
    report.refused("message queue by name", open_message_queue(queue, libc::O_RDWR));
    report.refused("file in shared memory", File::open(format!("/dev/shm/{file}")));
    for kind in ["shm", "sem", "msg"] {
        let listed = std::fs::read_to_string(format!("/proc/sysvipc/{kind}"))?;
        report.holds(format_args!("no {kind} object is listed"), listed.lines().count() <= 1);
    }
    Ok(())
}
