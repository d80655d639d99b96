//! The user database inside the sandbox.

use std::io::{self, Read};
use std::path::PathBuf;

use rustix::fs::{CWD, Mode, OFlags};

use crate::protocol::User;

/// The most that is read of a database; a hostile image may make it endless.
const LARGEST_DATABASE: u64 = 4 << 20;

/// Who a command runs as.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Account {
    pub(super) user: u32,
    pub(super) group: u32,
    pub(super) groups: Vec<u32>,
    pub(super) home: Option<PathBuf>,
    pub(super) name: Option<String>,
}

fn read_database(path: &str) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = match rustix::fs::openat(CWD, path, flags, Mode::empty()) {
        Ok(file) => std::fs::File::from(file),
        Err(rustix::io::Errno::NOENT) => return Ok(String::new()),
        Err(error) => return Err(error.into()),
    };
    if !file.metadata()?.is_file() {
        return Ok(String::new());
    }
    let mut bytes = Vec::new();
    file.take(LARGEST_DATABASE).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Looks a user up.
pub(super) fn resolve(user: &User) -> io::Result<Account> {
    find(user, &read_database("/etc/passwd")?, &read_database("/etc/group")?).ok_or_else(|| {
        let name = match user {
            User::Name(name) => name.clone(),
            User::Id { user, .. } => user.to_string(),
        };
        io::Error::new(
            io::ErrorKind::NotFound,
            format!("there is no user `{name}` in the sandbox's /etc/passwd"),
        )
    })
}

fn find(wanted: &User, users: &str, groups: &str) -> Option<Account> {
    let record = users.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, user, group, _, home, ..] = fields[..] else {
            return None;
        };
        let user: u32 = user.parse().ok()?;
        let matches = match wanted {
            User::Name(wanted) => wanted == name,
            User::Id { user: wanted, .. } => *wanted == user,
        };
        matches.then(|| (name, user, group.parse().unwrap_or(user), home))
    });
    let mut account = match (record, wanted) {
        (Some((name, user, group, home)), _) => Account {
            user,
            group,
            groups: Vec::new(),
            home: home.starts_with('/').then(|| PathBuf::from(home)),
            name: Some(name.to_owned()),
        },
        // A number needs no record.
        (None, User::Id { user, .. }) => {
            Account { user: *user, group: *user, groups: Vec::new(), home: None, name: None }
        }
        (None, User::Name(_)) => return None,
    };
    if let User::Id { group: Some(group), .. } = wanted {
        account.group = *group;
    }
    if let Some(name) = &account.name {
        account.groups = groups
            .lines()
            .filter_map(|line| {
                let fields: Vec<&str> = line.split(':').collect();
                let [_, _, group, members, ..] = fields[..] else {
                    return None;
                };
                members.split(',').any(|member| member == name).then(|| group.parse().ok())?
            })
            .collect();
    }
    Some(account)
}

#[cfg(test)]
mod tests {
    use super::*;

    const USERS: &str = "root:x:0:0:root:/root:/bin/sh\nbroken line\nweb:x:33:34:::/bin/false\napp:x:1000:1000::/home/app:/bin/sh\n";
    const GROUPS: &str = "root:x:0:\nadm:x:4:web,app\nvideo:x:44:app\nbroken\n";

    #[test]
    fn names_and_numbers_find_their_record_with_groups_and_home() {
        let app = find(&User::Name("app".into()), USERS, GROUPS).unwrap();
        assert_eq!(
            (app.user, app.group, app.groups, app.home),
            (1000, 1000, vec![4, 44], Some("/home/app".into()))
        );
        let web = find(&User::Id { user: 33, group: Some(7) }, USERS, GROUPS).unwrap();
        assert_eq!((web.group, web.home, web.name.as_deref()), (7, None, Some("web")));
    }

    #[test]
    fn a_number_needs_no_record_and_a_name_does() {
        assert_eq!(find(&User::Id { user: 5, group: None }, "", "").unwrap().group, 5);
        assert!(find(&User::Name("nobody".into()), USERS, GROUPS).is_none());
    }
}
