//! An image's configuration: what its author wants commands to get.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use leasehold_model::{Error, ErrorKind, Result};
use serde::Deserialize;

use super::digest::Digest;
use super::manifest::json;
use super::platform::{Platform, PlatformFields};

/// What an image says about the commands that run in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ImageConfig {
    /// Environment variables, in the image's order.
    pub environment: Vec<(OsString, OsString)>,
    /// Where commands start.
    pub working_directory: Option<PathBuf>,
    /// The user as the image writes it: `name`, `id`, `name:group` or `id:id`.
    pub user: Option<String>,
    /// The program and arguments that stand before every command.
    pub entrypoint: Vec<OsString>,
    /// The command, or the entry point's arguments, when the user gives none.
    pub command: Vec<OsString>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// The signal that asks the command to end, such as `SIGINT`.
    pub stop_signal: Option<String>,
    /// Ports that the image listens on, such as `80/tcp`.
    pub exposed_ports: Vec<String>,
}

/// The configuration document with what the store needs of it.
#[derive(Debug)]
pub(super) struct ConfigDocument {
    pub(super) config: ImageConfig,
    /// The decompressed layers' digests from the bottom up.
    pub(super) diff_ids: Vec<Digest>,
    platform: PlatformFields,
}

#[derive(Deserialize)]
struct Wire {
    #[serde(flatten)]
    platform: PlatformFields,
    #[serde(default)]
    config: Option<WireConfig>,
    rootfs: WireRootfs,
}

#[derive(Deserialize)]
struct WireRootfs {
    #[serde(rename = "type", default)]
    kind: String,
    #[serde(default)]
    diff_ids: Option<Vec<Digest>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "PascalCase", default)]
struct WireConfig {
    env: Option<Vec<String>>,
    working_dir: Option<String>,
    user: Option<String>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    labels: Option<BTreeMap<String, String>>,
    stop_signal: Option<String>,
    exposed_ports: Option<BTreeMap<String, serde_json::Value>>,
}

impl ConfigDocument {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        let wire: Wire = json(bytes, "the image's configuration")?;
        if !matches!(wire.rootfs.kind.as_str(), "" | "layers") {
            return Err(Error::new(
                ErrorKind::Unsupported,
                "image.resolve",
                format!("the image's root is of the unknown type `{}`", wire.rootfs.kind),
            ));
        }
        let config = wire.config.unwrap_or_default();
        let words =
            |list: Option<Vec<String>>| list.unwrap_or_default().into_iter().map(OsString::from).collect();
        let text = |text: Option<String>| text.filter(|text| !text.is_empty());
        // A variable without `=` means nothing without a host environment to take it from.
        let variable = |line: &String| line.split_once('=').map(|(name, value)| (name.into(), value.into()));
        Ok(Self {
            config: ImageConfig {
                environment: config.env.unwrap_or_default().iter().filter_map(variable).collect(),
                working_directory: text(config.working_dir).map(PathBuf::from),
                user: text(config.user),
                entrypoint: words(config.entrypoint),
                command: words(config.cmd),
                labels: config.labels.unwrap_or_default(),
                stop_signal: text(config.stop_signal),
                exposed_ports: config.exposed_ports.unwrap_or_default().into_keys().collect(),
            },
            diff_ids: wire.rootfs.diff_ids.unwrap_or_default(),
            platform: wire.platform,
        })
    }

    /// Refuses an image for another machine. One that says nothing is given a chance.
    pub(super) fn check_platform(&self, platform: &Platform) -> Result<()> {
        let silent =
            self.platform.architecture.is_empty() && matches!(self.platform.os.as_str(), "" | "linux");
        if silent || platform.rank(&self.platform).is_some() {
            return Ok(());
        }
        Err(Error::unsupported(
            "image.resolve",
            format!("the image is made for {} and this is {platform}", self.platform),
        )
        .with_hint("build or pull the image for this platform"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_read_and_null_is_nothing() {
        let document = ConfigDocument::parse(
            br#"{"architecture":"amd64","os":"linux","rootfs":{"type":"layers","diff_ids":[]},"config":{
            "Env":["PATH=/bin","A=b=c","odd"],"WorkingDir":"/w","User":"1:2","Entrypoint":["e"],"Cmd":["c"],
            "Labels":{"l":"v"},"StopSignal":"SIGINT","ExposedPorts":{"80/tcp":{}}}}"#,
        )
        .unwrap();
        let config = &document.config;
        assert_eq!(config.environment, [("PATH".into(), "/bin".into()), ("A".into(), "b=c".into())]);
        assert_eq!(config.working_directory, Some("/w".into()));
        assert_eq!((config.user.as_deref(), config.stop_signal.as_deref()), (Some("1:2"), Some("SIGINT")));
        assert_eq!((config.entrypoint.len(), config.command.len()), (1, 1));
        assert_eq!(config.exposed_ports, ["80/tcp"]);
        let amd64 = Platform { architecture: "amd64".into(), variant: None };
        let arm64 = Platform { architecture: "arm64".into(), variant: None };
        document.check_platform(&amd64).unwrap();
        assert_eq!(document.check_platform(&arm64).unwrap_err().kind(), ErrorKind::Unsupported);

        let empty = ConfigDocument::parse(
            br#"{"rootfs":{"diff_ids":null},"config":{"Env":null,"WorkingDir":"","Cmd":null,"Labels":null}}"#,
        )
        .unwrap();
        assert_eq!(empty.config, ImageConfig::default());
        empty.check_platform(&arm64).unwrap();
        assert!(ConfigDocument::parse(b"{}").is_err());
    }
}
