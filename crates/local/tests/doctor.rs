//! The doctor on the host that runs the tests, whatever that host can do.

use std::process::Command;

use leasehold_local::doctor::{Block, Doctor, Rung, Status};

/// Set for a copy of this test program that runs on a host changed for it.
const DATA_DIRECTORY: &str = "LEASEHOLD_TEST_DOCTOR_DATA_DIRECTORY";

#[test]
fn the_rung_the_refusal_and_the_text_tell_the_same() {
    let data = tempfile::tempdir().unwrap();
    let diagnosis = Doctor::new(data.path()).examine();
    assert_eq!(diagnosis.refusal().is_some(), diagnosis.rung == Rung::Refused);
    let text = diagnosis.to_string();
    for finding in &diagnosis.findings {
        assert!(text.contains(finding.block.name()), "{text}");
        if let Status::Missing { reason } = &finding.status {
            assert!(text.contains(reason.as_str()), "{text}");
        }
    }
    assert!(diagnosis.finding(Block::WorkspaceOverlay).is_none(), "no workspace was given");
}

#[test]
fn a_file_instead_of_a_data_directory_is_an_answer_and_no_panic() {
    let data = tempfile::NamedTempFile::new().unwrap();
    let diagnosis = Doctor::new(data.path().join("below")).with_workspace(data.path()).examine();
    let workspace = diagnosis.finding(Block::WorkspaceOverlay).unwrap();
    assert!(workspace.status.is_lacking());
    assert_eq!(diagnosis.rung, Rung::Refused);
}

/// Does nothing but when [`f84_no_user_namespaces_allowed_in_a_nested_one`] starts it.
#[test]
fn print_a_diagnosis_when_asked() {
    if let Some(data) = std::env::var_os(DATA_DIRECTORY) {
        println!("{}", Doctor::new(data).examine());
    }
}

#[test]
fn f84_no_user_namespaces_allowed_in_a_nested_one() {
    let data = tempfile::tempdir().unwrap();
    let script = "echo 0 > /proc/sys/user/max_user_namespaces && exec \"$0\" --exact print_a_diagnosis_when_asked --nocapture";
    let started = Command::new("unshare")
        .args(["--user", "--map-root-user", "sh", "-c", script])
        .arg(std::env::current_exe().unwrap())
        .env(DATA_DIRECTORY, data.path())
        .output();
    let output = match started {
        Ok(output) if output.status.success() => output,
        other => {
            println!("skipped: this host makes no nested user namespace: {other:?}");
            return;
        }
    };
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("MISSING  user_namespaces     user.max_user_namespaces is 0: ENOSPC"), "{text}");
    assert!(text.contains("sysctl -w user.max_user_namespaces=15000"), "{text}");
    assert!(text.contains("This host cannot make sandboxes yet. Missing: user_namespaces."), "{text}");
}
