//! The commands that mend a host. Everything is meant to be pasted into a shell as it is.

use std::path::Path;

use super::facts::HostFacts;

/// Writes fixes for one host and user.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fixes<'facts> {
    facts: &'facts HostFacts,
}

impl<'facts> Fixes<'facts> {
    pub(super) fn new(facts: &'facts HostFacts) -> Self {
        Self { facts }
    }

    /// `sudo `, or nothing for root.
    pub(super) fn sudo(self) -> &'static str {
        if self.facts.user_id == 0 && !self.nested() { "" } else { "sudo " }
    }

    /// Whether this process lives in a user namespace below the host's, where even its root has no
    /// right over the host.
    fn nested(self) -> bool {
        (1..u64::from(u32::MAX)).contains(&self.facts.confinement.mapped_ids)
    }

    /// Says where commands must be typed, when it is not here.
    fn outside(self, commands: String) -> String {
        match self.container() {
            Some(container) => format!("# on the host of this {container} container:\n{commands}"),
            None if self.nested() => format!("# outside of this user namespace:\n{commands}"),
            None => commands,
        }
    }

    /// Shows who forbade something.
    pub(super) fn find_the_forbidder(self) -> String {
        let sudo = self.sudo();
        format!("# see who forbade it:\n{sudo}dmesg | grep -iE 'apparmor|selinux|avc|userns' | tail")
    }

    fn container(self) -> Option<&'facts str> {
        self.facts.confinement.container.as_deref()
    }

    /// Sets a kernel setting now and for every start.
    pub(super) fn setting(self, name: &str, value: u64) -> String {
        let sudo = self.sudo();
        let commands = format!(
            "{sudo}sysctl -w {name}={value}\n\
             echo '{name} = {value}' | {sudo}tee /etc/sysctl.d/90-leasehold-{}.conf   # keeps it after a restart",
            name.rsplit('.').next().unwrap_or(name).replace('_', "-")
        );
        self.outside(commands)
    }

    /// An AppArmor profile for our program, or the setting for every program.
    pub(super) fn apparmor(self) -> String {
        let sudo = self.sudo();
        let program = apparmor_path(&self.facts.program);
        format!(
            "# allow it for this program only, now and after a restart:\n\
             {sudo}tee /etc/apparmor.d/leasehold <<'END'\n\
             abi <abi/4.0>,\n\
             include <tunables/global>\n\
             \n\
             profile leasehold {program} flags=(unconfined) {{\n\
             \x20 userns,\n\
             \x20 include if exists <local/leasehold>\n\
             }}\n\
             END\n\
             {sudo}apparmor_parser --replace /etc/apparmor.d/leasehold\n\
             # or for every program:\n\
             {}",
            self.setting("kernel.apparmor_restrict_unprivileged_userns", 0)
        )
    }

    /// How to start the container that we run in, so that sandboxes can be made inside.
    pub(super) fn container_flags(self) -> String {
        match self.container() {
            Some("podman") => "podman run --security-opt seccomp=unconfined --security-opt unmask=ALL \\\n\
                 \x20 --security-opt label=disable --device /dev/net/tun IMAGE   # start the container so"
                .to_owned(),
            Some("kubernetes") => "# in the pod's specification (procMount needs hostUsers: false):\n\
                 spec:\n\
                 \x20 hostUsers: false\n\
                 \x20 containers:\n\
                 \x20   - securityContext:\n\
                 \x20       procMount: Unmasked\n\
                 \x20       seccompProfile: { type: Unconfined }\n\
                 \x20       appArmorProfile: { type: Unconfined }"
                .to_owned(),
            Some("docker") => "docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined \\\n\
                 \x20 --security-opt systempaths=unconfined --device /dev/net/tun IMAGE   # start the container so"
                .to_owned(),
            _ => "# start this process without the seccomp filter that it inherits; in Docker:\n\
                 docker run --security-opt seccomp=unconfined --security-opt apparmor=unconfined \\\n\
                 \x20 --security-opt systempaths=unconfined --device /dev/net/tun IMAGE"
                .to_owned(),
        }
    }

    /// Reserves subordinate ids for the user.
    pub(super) fn reserve_ids(self) -> String {
        const COUNT: u64 = 65_536;
        let first = self.facts.subordinate_ids.first_free.max(100_000);
        let last = first + COUNT - 1;
        format!(
            "{}usermod --add-subuids {first}-{last} --add-subgids {first}-{last} {}",
            self.sudo(),
            self.facts.user_name
        )
    }

    /// Installs `newuidmap` and `newgidmap`.
    pub(super) fn install_uidmap(self) -> String {
        let sudo = self.sudo();
        for family in &self.facts.distribution {
            let command = match family.as_str() {
                "debian" | "ubuntu" => "apt-get install --yes uidmap",
                "fedora" | "rhel" | "centos" => "dnf install --assumeyes shadow-utils",
                "alpine" => "apk add shadow shadow-subids",
                "arch" => "pacman --sync --needed shadow",
                "suse" | "opensuse" => "zypper install shadow",
                _ => continue,
            };
            return format!("{sudo}{command}");
        }
        "# install the package that holds newuidmap and newgidmap (uidmap, shadow or shadow-utils)".to_owned()
    }

    /// Gives the mapping tools back the set-uid bit that they have lost.
    pub(super) fn restore_set_user_id(self) -> String {
        let ids = &self.facts.subordinate_ids;
        let tools: Vec<String> =
            [&ids.newuidmap, &ids.newgidmap].into_iter().flatten().map(|tool| shell_word(tool)).collect();
        let sudo = self.sudo();
        let tools = tools.join(" ");
        format!("{sudo}chown root:root {tools} && {sudo}chmod u+s {tools}")
    }

    /// Lets this user set limits on cgroups.
    pub(super) fn delegate_cgroups(self) -> String {
        let facts = self.facts;
        match self.container() {
            Some("podman") => {
                return "podman run --security-opt unmask=/sys/fs/cgroup IMAGE   # start the container so"
                    .to_owned();
            }
            Some("docker") => {
                return "docker run --cgroupns=private --security-opt writable-cgroups=true IMAGE   # Docker 28 or later"
                    .to_owned();
            }
            Some(container) => {
                return format!("# start the {container} container with a writable cgroup of its own");
            }
            None => {}
        }
        if facts.systemd && facts.user_id == 0 {
            return "systemd-run --scope --property=Delegate=yes leasehold run -- COMMAND".to_owned();
        }
        if facts.systemd {
            return "systemd-run --user --scope --property=Delegate=yes leasehold run -- COMMAND   # for one run\n\
                 # if it then still lacks a controller, delegate all of them, and log in again:\n\
                 sudo mkdir -p /etc/systemd/system/user@.service.d\n\
                 printf '[Service]\\nDelegate=cpu cpuset io memory pids\\n' | sudo tee /etc/systemd/system/user@.service.d/leasehold.conf\n\
                 sudo systemctl daemon-reload"
                .to_owned();
        }
        self.hand_over_groups()
    }

    /// A group of the user's own in every hierarchy, without systemd.
    fn hand_over_groups(self) -> String {
        let facts = self.facts;
        let sudo = self.sudo();
        let user = &facts.user_name;
        let unified = facts.cgroups.unified.as_ref().map(|group| group.directory.as_path());
        let legacy = facts.cgroups.legacy.iter().map(|group| group.directory.as_path());
        let groups: Vec<String> = unified
            .into_iter()
            .chain(legacy)
            .map(|parent| shell_word(&parent.join(format!("leasehold-{user}"))))
            .collect();
        if groups.is_empty() {
            return format!("{sudo}mount --types cgroup2 none /sys/fs/cgroup   # then examine again");
        }
        let mut commands =
            vec!["# a group for this user, which the shell then enters; until the next restart:".to_owned()];
        if let (Some(unified), true) = (unified, facts.cgroups.legacy.is_empty()) {
            let control = shell_word(&unified.join("cgroup.subtree_control"));
            commands.push(format!("echo '+cpu +memory +pids' | {sudo}tee {control}"));
        }
        commands.push(format!("for group in {}; do", groups.join(" \\\n    ")));
        commands.push(format!(
            "  {sudo}mkdir -p $group && {sudo}chown -R {user} $group && echo $$ | {sudo}tee $group/cgroup.procs"
        ));
        commands.push("done".to_owned());
        self.outside(commands.join("\n"))
    }

    /// Loads a kernel module now and at every start.
    pub(super) fn load_module(self, module: &str) -> String {
        let sudo = self.sudo();
        format!(
            "{sudo}modprobe {module}\n\
             echo {module} | {sudo}tee /etc/modules-load.d/leasehold-{module}.conf   # keeps it after a restart"
        )
    }

    /// Lets every user open `/dev/net/tun`, which is safe: making an interface needs rights over the
    /// network namespace.
    pub(super) fn open_tun_device(self) -> String {
        let sudo = self.sudo();
        format!(
            "{sudo}chmod 666 /dev/net/tun\n\
             echo 'KERNEL==\"tun\", MODE=\"0666\"' | {sudo}tee /etc/udev/rules.d/90-leasehold-tun.rules   # keeps it after a restart"
        )
    }

    /// Makes the data directory the user's own.
    pub(super) fn own_directory(self, directory: &Path) -> String {
        format!(
            "{}install --directory --owner={} --mode=700 {}",
            self.sudo(),
            self.facts.user_name,
            shell_word(directory)
        )
    }

    /// Puts the data directory on a file system that an overlay can write to.
    pub(super) fn other_file_system(self, directory: &Path) -> String {
        let word = shell_word(directory);
        match self.container() {
            Some(program @ ("docker" | "podman")) => {
                format!(
                    "{program} run --volume leasehold:{word} IMAGE   # a volume is not an overlay; start the container so"
                )
            }
            _ => format!(
                "# choose a data directory on ext4, xfs, btrfs or tmpfs, or mount one at {word}:\n\
                 {}mount --types tmpfs --options mode=700,uid={} tmpfs {word}",
                self.sudo(),
                self.facts.user_id
            ),
        }
    }
}

/// A path as one word of a shell command.
pub(super) fn shell_word(path: &Path) -> String {
    let text = path.to_string_lossy();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/_.+-@:,=%".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        return text.into_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A path as AppArmor wants it: wildcards escaped, and quoted where it has other odd characters.
fn apparmor_path(path: &Path) -> String {
    let mut escaped = String::new();
    for character in path.to_string_lossy().chars() {
        if r#"\"?*[]{}^,@"#.contains(character) {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    let plain = escaped.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/_.+-".contains(&byte));
    if plain { escaped } else { format!("\"{escaped}\"") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_paths_stay_one_word() {
        assert_eq!(shell_word(Path::new("/var/lib/leasehold")), "/var/lib/leasehold");
        assert_eq!(shell_word(Path::new("/it's here")), r"'/it'\''s here'");
        assert_eq!(shell_word(Path::new("")), "''");
    }

    #[test]
    fn odd_programs_are_quoted_for_apparmor() {
        assert_eq!(apparmor_path(Path::new("/usr/bin/leasehold")), "/usr/bin/leasehold");
        assert_eq!(apparmor_path(Path::new("/my tools/l*")), r#""/my tools/l\*""#);
    }
}
