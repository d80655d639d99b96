//! The moment after which a change on the host counts as "meanwhile".

use std::path::Path;

use leasehold_model::{Error, Result};
use rustix::fs::{
    AtFlags, Mode, OFlags, StatxFlags, StatxTimestamp, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT,
};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// A point in time as file systems record it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Timestamp {
    /// Whole seconds since 1970; negative before.
    pub seconds: i64,
    /// Nanoseconds after that second, below one thousand million.
    pub nanoseconds: u32,
}

impl From<StatxTimestamp> for Timestamp {
    fn from(time: StatxTimestamp) -> Self {
        Self { seconds: time.tv_sec, nanoseconds: time.tv_nsec }
    }
}

impl Timestamp {
    /// The argument that sets this as a modification time and leaves the access time alone.
    pub(super) fn as_modification(self) -> Timestamps {
        Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
            last_modification: Timespec { tv_sec: self.seconds, tv_nsec: i64::from(self.nanoseconds) },
        }
    }
}

/// A moment on the clock that stamps inode changes, taken just before a sandbox first sees its
/// workspace. Whatever the host changed later bears a later change time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Baseline(pub Timestamp);

impl Baseline {
    /// Takes the moment by stamping a directory that the caller owns (the upper layer's).
    ///
    /// Kernels since 6.13 give fine stamps to some inodes and coarse ones to others, and only promise
    /// that a later change never bears an earlier stamp. So a stamp is the one clock that orders
    /// correctly against other stamps: the coarse clock would make a file that was written a
    /// millisecond before look changed afterwards.
    pub fn take(directory: &Path) -> Result<Self> {
        let failed = |source: rustix::io::Errno| {
            Error::io(
                "changes.baseline",
                format!("cannot stamp the directory {}", directory.display()),
                source.into(),
            )
        };
        let opened =
            rustix::fs::open(directory, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
                .map_err(failed)?;
        let stamp = Timestamps {
            last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
            last_modification: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        };
        rustix::fs::futimens(&opened, &stamp).map_err(failed)?;
        let status =
            rustix::fs::statx(&opened, c"", AtFlags::EMPTY_PATH, StatxFlags::CTIME).map_err(failed)?;
        Ok(Self(status.stx_ctime.into()))
    }

    /// The moment by the coarse system clock, for a caller without a directory to stamp.
    pub fn from_clock() -> Self {
        let now = clock_gettime(ClockId::RealtimeCoarse);
        Self(Timestamp { seconds: now.tv_sec, nanoseconds: u32::try_from(now.tv_nsec).unwrap_or(0) })
    }

    /// Whether a change time lies after this moment. A stamp without a fraction comes from a file
    /// system that counts whole seconds; there the whole second of the baseline is in doubt and counts
    /// as after.
    pub(super) fn is_before(self, change_time: Timestamp) -> bool {
        if change_time.nanoseconds == 0 {
            return change_time.seconds >= self.0.seconds;
        }
        change_time > self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_written_before_are_not_after_and_files_written_later_are() {
        let directory = tempfile::tempdir().unwrap();
        let stamp = |name: &str| -> Timestamp {
            let path = directory.path().join(name);
            rustix::fs::statx(rustix::fs::CWD, &path, AtFlags::empty(), StatxFlags::CTIME)
                .unwrap()
                .stx_ctime
                .into()
        };
        // Reading the stamp between two writes is what makes new kernels hand out fine ones.
        for round in 0..50 {
            std::fs::write(directory.path().join("file"), format!("{round}")).unwrap();
            stamp("file");
            std::fs::write(directory.path().join("file"), "again").unwrap();
            let before = stamp("file");
            let baseline = Baseline::take(directory.path()).unwrap();
            assert!(!baseline.is_before(before), "{before:?} {baseline:?}");
        }
    }

    #[test]
    fn whole_second_stamps_are_in_doubt_for_that_second() {
        let baseline = Baseline(Timestamp { seconds: 10, nanoseconds: 500 });
        assert!(baseline.is_before(Timestamp { seconds: 10, nanoseconds: 0 }));
        assert!(!baseline.is_before(Timestamp { seconds: 10, nanoseconds: 500 }));
        assert!(!baseline.is_before(Timestamp { seconds: 9, nanoseconds: 0 }));
        assert!(baseline.is_before(Timestamp { seconds: 10, nanoseconds: 501 }));
    }
}
