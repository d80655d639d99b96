//! The test programs that cargo builds, and what cargo would tell each of them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use leasehold_model::Result;
use serde_json::Value;

use crate::subprocess::{self, cargo};

/// One test program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct TestProgram {
    /// The program.
    pub(crate) executable: PathBuf,
    /// The directory of its crate, in which cargo runs it.
    pub(crate) directory: PathBuf,
    /// Programs of the same crate, by name, which its tests may start.
    pub(crate) binaries: BTreeMap<String, PathBuf>,
}

/// Builds all tests and says where they are.
pub(crate) fn build() -> Result<Vec<TestProgram>> {
    println!("test: building");
    let mut command = cargo();
    command.args(["test", "--workspace", "--no-run", "--message-format=json-render-diagnostics"]);
    let output = subprocess::capture(&mut command)?;
    Ok(parse(&String::from_utf8_lossy(&output)))
}

fn parse(messages: &str) -> Vec<TestProgram> {
    let mut programs = Vec::new();
    let mut binaries: BTreeMap<PathBuf, BTreeMap<String, PathBuf>> = BTreeMap::new();
    // Lines that aren't JSON come from build scripts and macros, and are not for us.
    for message in messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let (Some(executable), Some(manifest)) =
            (message["executable"].as_str(), message["manifest_path"].as_str())
        else {
            continue;
        };
        let directory = Path::new(manifest).parent().unwrap_or(Path::new("/")).to_path_buf();
        let executable = PathBuf::from(executable);
        if message["profile"]["test"] == true {
            programs.push(TestProgram { executable, directory, binaries: BTreeMap::new() });
        } else if message["target"]["kind"][0] == "bin" {
            let name = message["target"]["name"].as_str().unwrap_or_default().to_owned();
            binaries.entry(directory).or_default().insert(name, executable);
        }
    }
    for program in &mut programs {
        program.binaries = binaries.get(&program.directory).cloned().unwrap_or_default();
    }
    programs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_get_the_binaries_of_their_own_crate() {
        let message = |crate_name: &str, kind: &str, test: bool, executable: &str| {
            serde_json::json!({
                "reason": "compiler-artifact",
                "manifest_path": format!("/w/{crate_name}/Cargo.toml"),
                "target": {"kind": [kind], "name": crate_name},
                "profile": {"test": test},
                "executable": executable,
            })
            .to_string()
        };
        let text = [
            message("a", "bin", false, "/t/a"),
            message("a", "test", true, "/t/a-test"),
            "a line of a build script".to_owned(),
            message("b", "lib", true, "/t/b-test"),
            r#"{"reason":"compiler-artifact","executable":null,"manifest_path":"/w/c/Cargo.toml"}"#
                .to_owned(),
        ];
        let programs = parse(&text.join("\n"));
        assert_eq!(programs.len(), 2);
        assert_eq!(programs[0].directory, Path::new("/w/a"));
        assert_eq!(programs[0].binaries["a"], Path::new("/t/a"));
        assert_eq!(programs[1].executable, Path::new("/t/b-test"));
        assert!(programs[1].binaries.is_empty());
    }
}
