//! What a case works with: sandboxes of its own, and short words for frequent steps.

use std::fmt;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime};

use leasehold_model::{
    AttemptName, CommandSpec, Error, ErrorKind, Labels, Result, SandboxSpec, TemplateId, Verdict,
    WorkspaceSpec,
};
use tokio::io::AsyncReadExt as _;

use crate::capabilities::Capability;
use crate::execution::{CollectedOutput, Execution, OutputStream};
use crate::files::{FileReader, WriteOptions};
use crate::provider::Provider;
use crate::sandbox::Sandbox;

/// The label that every sandbox of the suite carries; its value names the run.
pub(super) const LABEL: &str = "leasehold-suite";
const CASE_LABEL: &str = "leasehold-suite-case";

/// More than any collected output of the suite.
const COLLECT_LIMIT: usize = 128 << 20;

/// Where every sandbox of the suite has its workspace.
pub(super) const WORKSPACE: &str = "/workspace";

/// Names this run of the suite, so that parallel runs on one account never see each other.
pub(super) fn run_name() -> &'static str {
    static RUN: OnceLock<String> = OnceLock::new();
    RUN.get_or_init(|| {
        let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        format!("{:x}-{:x}", since.as_micros(), std::process::id())
    })
}

pub(super) fn run_labels() -> Labels {
    Labels([(LABEL.to_owned(), run_name().to_owned())].into())
}

pub(super) struct Workbench {
    provider: Arc<dyn Provider>,
    case: &'static str,
    skipped: Mutex<Option<String>>,
    templates: Mutex<Vec<TemplateId>>,
}

impl fmt::Debug for Workbench {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Workbench").field("case", &self.case).finish_non_exhaustive()
    }
}

impl Workbench {
    pub(super) fn new(provider: Arc<dyn Provider>, case: &'static str) -> Self {
        Self { provider, case, skipped: Mutex::default(), templates: Mutex::default() }
    }

    pub(super) fn provider(&self) -> &Arc<dyn Provider> {
        &self.provider
    }

    pub(super) fn can(&self, capability: Capability) -> bool {
        self.provider.capabilities().has(capability)
    }

    /// The labels of this case's sandboxes.
    pub(super) fn labels(&self) -> Labels {
        let mut labels = run_labels();
        labels.0.insert(CASE_LABEL.to_owned(), self.case.to_owned());
        labels
    }

    /// A template id that nobody has used; the template is removed at the end.
    pub(super) fn template(&self) -> TemplateId {
        let template = TemplateId::new(unique()).expect("the suite's own names are valid");
        self.templates.lock().unwrap_or_else(PoisonError::into_inner).push(template.clone());
        template
    }

    /// A sandbox with an empty workspace.
    pub(super) fn spec(&self) -> SandboxSpec {
        let mut spec = SandboxSpec::new(name());
        spec.labels = self.labels();
        spec.workspace = Some(WorkspaceSpec { source: None, target: PathBuf::from(WORKSPACE) });
        spec
    }

    pub(super) async fn sandbox(&self) -> Result<Arc<dyn Sandbox>> {
        self.provider.create(self.spec()).await
    }

    /// Records why nothing could be shown.
    pub(super) fn skip(&self, reason: impl Into<String>) {
        *self.skipped.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason.into());
    }

    pub(super) fn skipped(&self) -> Option<String> {
        self.skipped.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Destroys what the case left, then waits until the provider lists nothing of it any more.
    pub(super) async fn sweep(&self) -> Result<()> {
        const PATIENCE: Duration = Duration::from_secs(60);
        let templates = std::mem::take(&mut *self.templates.lock().unwrap_or_else(PoisonError::into_inner));
        let swept = async {
            loop {
                let left = self.provider.list(&self.labels()).await?;
                if left.is_empty() {
                    break;
                }
                for info in left {
                    self.provider.destroy(&info.id).await?;
                }
                pause(50).await;
            }
            if self.can(Capability::Templates) {
                for template in &templates {
                    self.provider.delete_template(template).await?;
                }
            }
            Ok(())
        };
        tokio::time::timeout(PATIENCE, swept).await.unwrap_or_else(|_| {
            Err(Error::new(
                ErrorKind::DeadlineExceeded,
                "suite.sweep",
                "destroying the case's sandboxes did not end, or the provider still lists them",
            ))
        })
    }
}

/// A name that nobody has used.
pub(super) fn name() -> AttemptName {
    AttemptName::new(unique()).expect("the suite's own names are valid")
}

fn unique() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    format!("suite-{}-{}", run_name(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Gives others time to do something. Checks never depend on how long it really takes.
pub(super) async fn pause(milliseconds: u64) {
    tokio::time::sleep(Duration::from_millis(milliseconds)).await;
}

/// Repeats `question` until it answers yes; the bound is the case's own.
pub(super) async fn until<F, A>(mut question: F) -> Result<()>
where
    F: FnMut() -> A,
    A: Future<Output = Result<bool>>,
{
    while !question().await? {
        pause(50).await;
    }
    Ok(())
}

/// Runs a command to its end and collects all that it wrote.
pub(super) async fn run(sandbox: &Arc<dyn Sandbox>, command: CommandSpec) -> Result<CollectedOutput> {
    sandbox.exec(command).await?.collect(COLLECT_LIMIT).await
}

/// Runs a shell line to its end.
pub(super) async fn sh(sandbox: &Arc<dyn Sandbox>, line: &str) -> Result<CollectedOutput> {
    run(sandbox, CommandSpec::shell(line)).await
}

/// The standard output of a shell line that must succeed.
pub(super) async fn stdout(sandbox: &Arc<dyn Sandbox>, line: &str) -> Result<String> {
    let output = sh(sandbox, line).await?;
    assert!(
        output.verdict.is_success(),
        "`{line}` {}: {}",
        output.verdict,
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Starts a shell line.
pub(super) async fn start(sandbox: &Arc<dyn Sandbox>, line: &str) -> Result<Execution> {
    sandbox.exec(CommandSpec::shell(line)).await
}

/// Writes a file.
pub(super) async fn write(sandbox: &Arc<dyn Sandbox>, path: impl AsRef<Path>, content: &[u8]) -> Result<u64> {
    sandbox.files().write(path.as_ref(), reader(content), WriteOptions::default()).await
}

/// Bytes as the content of a file to write.
pub(super) fn reader(content: &[u8]) -> FileReader {
    Box::new(std::io::Cursor::new(content.to_vec()))
}

/// Reads a whole file.
pub(super) async fn read(sandbox: &Arc<dyn Sandbox>, path: impl AsRef<Path>) -> Result<Vec<u8>> {
    read_from(sandbox, path, 0).await
}

/// Reads a file from an offset on.
pub(super) async fn read_from(
    sandbox: &Arc<dyn Sandbox>,
    path: impl AsRef<Path>,
    offset: u64,
) -> Result<Vec<u8>> {
    let mut reader = sandbox.files().read(path.as_ref(), offset).await?;
    let mut content = Vec::new();
    reader.read_to_end(&mut content).await.map_err(|source| {
        Error::io("suite.read", format!("cannot read {}", path.as_ref().display()), source)
    })?;
    Ok(content)
}

/// Whether a path exists, by an explicit answer.
pub(super) async fn exists(sandbox: &Arc<dyn Sandbox>, path: impl AsRef<Path>) -> Result<bool> {
    match sandbox.files().stat(path.as_ref()).await {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// The size of a file; zero while there is none.
pub(super) async fn size(sandbox: &Arc<dyn Sandbox>, path: impl AsRef<Path>) -> Result<u64> {
    match sandbox.files().stat(path.as_ref()).await {
        Ok(entry) => Ok(entry.size),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(0),
        Err(error) => Err(error),
    }
}

/// Reads output until `text` has appeared, and answers all of it.
pub(super) async fn read_until(output: &mut OutputStream, text: &str) -> Result<Vec<u8>> {
    let mut seen = Vec::new();
    while !contains(&seen, text.as_bytes()) {
        match output.next().await {
            Some(chunk) => seen.extend_from_slice(&chunk?.bytes),
            None => panic!("the output ended without `{text}`: {:?}", String::from_utf8_lossy(&seen)),
        }
    }
    Ok(seen)
}

/// Whether bytes hold other bytes.
pub(super) fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// The kind of the error that this must be.
#[track_caller]
pub(super) fn refused<T>(result: Result<T>, kind: ErrorKind, what: &str) {
    match result {
        Ok(_) => panic!("{what} succeeded; it must fail with {}", kind.as_str()),
        Err(error) => assert_eq!(error.kind(), kind, "{what} failed otherwise: {error:?}"),
    }
}

/// Checks an exit status.
#[track_caller]
pub(super) fn exited(verdict: &Verdict, code: u8) {
    assert_eq!(verdict, &Verdict::Exited { code });
}

/// Checks equality of long bytes without printing them.
#[track_caller]
pub(super) fn same_bytes(found: &[u8], expected: &[u8], what: &str) {
    let differs = found.iter().zip(expected).position(|(left, right)| left != right);
    assert!(
        found == expected,
        "{what}: {} bytes instead of {}, first difference at {:?}",
        found.len(),
        expected.len(),
        differs.or(Some(found.len().min(expected.len())))
    );
}

/// One line for each number.
pub(super) fn lines(numbers: RangeInclusive<u32>, line: impl Fn(u32) -> String) -> String {
    numbers.map(line).collect::<Vec<_>>().concat()
}

/// Bytes that look random and are the same in every run.
pub(super) fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()[3]
    })
    .take(length)
    .collect()
}
