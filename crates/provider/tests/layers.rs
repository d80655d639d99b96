//! What each layer does, on the in-memory provider.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leasehold_model::{
    AttemptName, CommandSpec, Error, ErrorKind, Labels, Result, Retry, SandboxSpec, Verdict,
};
use leasehold_provider::layer::{
    Backoff, CallDeadlines, ChaosLayer, ChaosRates, DeadlineLayer, Layer, Layered, LimitLayer, Operation,
    OperationKind, Repeat, RetryLayer, TraceLayer, may_repeat,
};
use leasehold_provider::memory::MemoryProvider;
use leasehold_provider::{Provider, SandboxQuery, suite};

fn memory() -> Arc<dyn Provider> {
    Arc::new(MemoryProvider::new())
}

fn spec(name: &str) -> SandboxSpec {
    SandboxSpec::new(AttemptName::new(name).expect("a valid name"))
}

fn operation(name: &'static str, repeat: Repeat) -> Operation<'static> {
    Operation { name, kind: OperationKind::Query, repeat, sandbox: None }
}

fn all(rate: impl FnOnce(&mut ChaosRates)) -> ChaosLayer {
    let mut rates = ChaosRates::default();
    rate(&mut rates);
    ChaosLayer::new(7, rates)
}

#[tokio::test(start_paused = true)]
async fn f40_a_call_that_never_answers_ends_at_its_deadline() {
    let hanging = all(|rates| rates.hang = 1000);
    let provider = Layered::new(memory()).with(hanging).with(DeadlineLayer::default()).build();
    let begun = tokio::time::Instant::now();
    let error = provider.create(spec("a")).await.unwrap_err();
    assert_eq!((error.kind(), error.operation()), (ErrorKind::DeadlineExceeded, "provider.create"));
    assert_eq!(error.retry(), Retry::Never);
    assert_eq!(begun.elapsed().as_secs(), CallDeadlines::default().create.as_secs());
    let error = provider.list(&Labels::default()).await.unwrap_err();
    assert_eq!((error.kind(), error.operation()), (ErrorKind::DeadlineExceeded, "provider.list"));
}

/// Hangs in every call but those that lead to one.
#[derive(Debug)]
struct HangButFind;
impl Layer for HangButFind {
    async fn around<T, F, C>(&self, operation: Operation<'_>, call: C) -> Result<T>
    where
        T: Send,
        F: Future<Output = Result<T>> + Send,
        C: Fn() -> F + Send + Sync,
    {
        if !matches!(operation.name, "provider.find" | "sandbox.exec") {
            std::future::pending::<()>().await;
        }
        call().await
    }
}

#[tokio::test(start_paused = true)]
async fn f40_every_method_has_a_deadline() {
    let bare = MemoryProvider::new();
    bare.create(spec("a")).await.unwrap();
    let provider = Layered::new(Arc::new(bare)).with(HangButFind).with(DeadlineLayer::default()).build();
    let query = SandboxQuery::Name(AttemptName::new("a").unwrap());
    let sandbox = provider.find(&query).await.unwrap().unwrap();
    let files = sandbox.files();
    let control = sandbox.exec(CommandSpec::new(["sleep", "100000"])).await.unwrap().control;
    let path = std::path::Path::new("x");
    let content = || Box::new(std::io::Cursor::new(Vec::new()));
    let kinds = [
        sandbox.refresh().await.map(drop),
        sandbox.stop().await.map(drop),
        sandbox.start().await,
        sandbox.pause().await,
        sandbox.resume().await,
        sandbox.archive().await,
        sandbox.set_expiry(None).await,
        sandbox.set_idle_stop(None).await,
        sandbox.capture_template("t".parse().unwrap()).await.map(drop),
        sandbox.fork("b".parse().unwrap()).await.map(drop),
        sandbox.connect(1).await.map(drop),
        sandbox.delete().await.map(drop),
        control.cancel().await,
        control.signal(leasehold_model::SignalNumber::KILL, leasehold_provider::SignalScope::Tree).await,
        control.resize(leasehold_model::TerminalSize::default()).await,
        files.read(path, 0).await.map(drop),
        files.write(path, content(), leasehold_provider::WriteOptions::default()).await.map(drop),
        files.stat(path).await.map(drop),
        files.list(path).await.map(drop),
        files.make_directory(path, 0o755, false).await,
        files.make_symlink(path, path).await,
        files.remove(path, false).await,
        files.rename(path, path).await,
        files.set_mode(path, 0).await,
        files.set_modified(path, std::time::SystemTime::UNIX_EPOCH).await,
    ]
    .map(|ended| ended.unwrap_err().kind());
    assert!(kinds.iter().all(|kind| *kind == ErrorKind::DeadlineExceeded), "{kinds:?}");
}

/// A provider that reports no end: a paused sandbox whose commands are never killed.
#[tokio::test(start_paused = true)]
async fn f41_a_verdict_that_never_comes_is_not_waited_for() {
    #[derive(Debug)]
    struct Endless(DeadlineLayer);
    impl Layer for Endless {
        async fn around<T, F, C>(&self, operation: Operation<'_>, call: C) -> Result<T>
        where
            T: Send,
            F: Future<Output = Result<T>> + Send,
            C: Fn() -> F + Send + Sync,
        {
            self.0.around(operation, call).await
        }

        fn execution(
            &self,
            command: &CommandSpec,
            execution: leasehold_provider::Execution,
        ) -> leasehold_provider::Execution {
            // The provider below runs the command without the timeout that its caller set.
            let command = command.clone().with_timeout(Duration::from_secs(5));
            self.0.execution(&command, execution)
        }
    }
    let provider = Layered::new(memory()).with(Endless(DeadlineLayer::default())).build();
    let sandbox = provider.create(spec("a")).await.unwrap();
    let mut execution = sandbox.exec(CommandSpec::new(["sleep", "1000000"])).await.unwrap();
    let broken = execution.output.next().await.unwrap().unwrap_err();
    assert_eq!(broken.kind(), ErrorKind::DeadlineExceeded);
    assert!(execution.output.next().await.is_none());
    assert_eq!(execution.control.verdict().await, Verdict::ObservationLost);
}

#[tokio::test(start_paused = true)]
async fn a_deadline_leaves_a_command_that_ends_alone() {
    let provider = Layered::new(memory()).with(DeadlineLayer::default()).build();
    let sandbox = provider.create(spec("a")).await.unwrap();
    let long = CommandSpec::shell("sleep 100000; echo done; exit 3");
    let output = sandbox.exec(long.clone()).await.unwrap().collect(100).await.unwrap();
    assert_eq!((output.stdout.as_slice(), output.verdict), (&b"done\n"[..], Verdict::Exited { code: 3 }));
    let allowed = Duration::from_secs(50);
    let output = sandbox.exec(long.with_timeout(allowed)).await.unwrap().collect(100).await.unwrap();
    assert_eq!(output.verdict, Verdict::Deadline { allowed });
}

#[test]
fn only_what_can_do_no_harm_is_repeated() {
    let unavailable = || Error::new(ErrorKind::Unavailable, "x", "no answer");
    let harmless = operation("provider.find", Repeat::Harmless);
    let once = operation("provider.create", Repeat::IfNoEffect);
    let never = operation("files.write", Repeat::Never);
    assert!(may_repeat(harmless, &unavailable()));
    assert!(!may_repeat(once, &unavailable()), "its effect is unknown");
    assert!(may_repeat(once, &unavailable().with_context("effect", "none")));
    assert!(!may_repeat(never, &unavailable().with_context("effect", "none")));
    let busy = || Error::new(ErrorKind::LimitExceeded, "x", "too many").with_retry(Retry::Later);
    assert!(may_repeat(once, &busy()));
    assert!(!may_repeat(once, &busy().with_context("effect", "unknown")));
    for kind in [ErrorKind::DeadlineExceeded, ErrorKind::Unexpected, ErrorKind::Corrupt, ErrorKind::Cancelled]
    {
        assert!(!may_repeat(once, &Error::new(kind, "x", "doubt").with_retry(Retry::Later)), "{kind:?}");
    }
    for kind in [ErrorKind::NotFound, ErrorKind::InvalidInput, ErrorKind::PermissionDenied] {
        assert!(!may_repeat(harmless, &Error::new(kind, "x", "for good")), "{kind:?}");
    }
}

/// Counts calls, and fails the first few of them.
#[derive(Debug)]
struct Failing {
    calls: Arc<AtomicUsize>,
    failures: usize,
    effect: &'static str,
}

impl Layer for Failing {
    async fn around<T, F, C>(&self, operation: Operation<'_>, call: C) -> Result<T>
    where
        T: Send,
        F: Future<Output = Result<T>> + Send,
        C: Fn() -> F + Send + Sync,
    {
        if self.calls.fetch_add(1, Ordering::SeqCst) < self.failures {
            let error = Error::new(ErrorKind::Unavailable, operation.name, "not now");
            return Err(error.with_context("effect", self.effect));
        }
        call().await
    }
}

fn retried(failures: usize, effect: &'static str) -> (Arc<dyn Provider>, Arc<AtomicUsize>) {
    let calls = Arc::new(AtomicUsize::new(0));
    let failing = Failing { calls: Arc::clone(&calls), failures, effect };
    let retry = RetryLayer::new(4, Backoff::default());
    (Layered::new(memory()).with(failing).with(retry).build(), calls)
}

#[tokio::test(start_paused = true)]
async fn a_question_is_asked_again_a_bounded_number_of_times() {
    let (provider, calls) = retried(3, "unknown");
    assert!(provider.list(&Labels::default()).await.unwrap().is_empty());
    assert_eq!(calls.load(Ordering::SeqCst), 4);
    let (provider, calls) = retried(100, "unknown");
    let error = provider.list(&Labels::default()).await.unwrap_err();
    assert_eq!((error.kind(), calls.load(Ordering::SeqCst)), (ErrorKind::Unavailable, 4));
    assert!(error.context().contains(&("attempts", "4".to_owned())), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn a_create_in_doubt_is_never_sent_again() {
    let (provider, calls) = retried(1, "unknown");
    assert!(provider.create(spec("a")).await.is_err());
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    let (provider, calls) = retried(2, "none");
    provider.create(spec("a")).await.unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    assert_eq!(provider.list(&Labels::default()).await.unwrap().len(), 1);
}

#[test]
fn waits_double_up_to_their_bound() {
    let backoff = Backoff { first: Duration::from_millis(100), longest: Duration::from_secs(1) };
    let spans: Vec<_> = (1..=6).map(|number| backoff.span(number, 1.0).as_millis()).collect();
    assert_eq!(spans, [100, 200, 400, 800, 1000, 1000]);
    assert_eq!(backoff.span(1, 0.0).as_millis(), 50);
    assert_eq!(backoff.span(u32::MAX, 1.0).as_secs(), 1);
}

/// Notes how many calls are inside at one time.
#[derive(Debug, Clone, Default)]
struct Crowd {
    now: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

impl Layer for Crowd {
    async fn around<T, F, C>(&self, _: Operation<'_>, call: C) -> Result<T>
    where
        T: Send,
        F: Future<Output = Result<T>> + Send,
        C: Fn() -> F + Send + Sync,
    {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(now, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(10)).await;
        let ended = call().await;
        self.now.fetch_sub(1, Ordering::SeqCst);
        ended
    }
}

#[tokio::test(start_paused = true)]
async fn calls_and_their_queue_are_bounded() {
    let crowd = Crowd::default();
    let provider = Layered::new(memory()).with(crowd.clone()).with(LimitLayer::new(3, 5)).build();
    let labels = Labels::default();
    let ended = futures_util::future::join_all((0..20).map(|_| provider.list(&labels))).await;
    assert_eq!(crowd.most.load(Ordering::SeqCst), 3);
    let (done, refused): (Vec<_>, Vec<_>) = ended.into_iter().partition(Result::is_ok);
    assert_eq!((done.len(), refused.len()), (8, 12));
    for error in refused.into_iter().map(Result::unwrap_err) {
        assert_eq!((error.kind(), error.retry()), (ErrorKind::LimitExceeded, Retry::Later));
        assert!(may_repeat(operation("provider.create", Repeat::IfNoEffect), &error));
    }
    // Callers that went away have given their places back.
    let dropped = tokio::time::timeout(Duration::from_millis(1), async {
        futures_util::future::join_all((0..8).map(|_| provider.list(&labels))).await
    });
    assert!(dropped.await.is_err());
    crowd.now.store(0, Ordering::SeqCst);
    let ended = futures_util::future::join_all((0..8).map(|_| provider.list(&labels))).await;
    assert!(ended.iter().all(Result::is_ok));
}

async fn story(seed: u64, shuffled: bool) -> Vec<String> {
    let rates = ChaosRates {
        fail_before: 200,
        fail_after: 200,
        delay: 200,
        hang: 100,
        cut_output: 300,
        longest_delay: Duration::from_secs(5),
    };
    let provider =
        Layered::new(memory()).with(ChaosLayer::new(seed, rates)).with(DeadlineLayer::default()).build();
    let mut story = Vec::new();
    for number in 0..100 {
        if shuffled {
            // Calls of another name change nothing.
            let _ = provider.list_templates().await;
        }
        let ended = provider.create(spec(&format!("a{number}"))).await;
        story.push(ended.map_or_else(|error| error.to_string(), |_| "made".to_owned()));
    }
    story
}

#[tokio::test(start_paused = true)]
async fn chaos_follows_from_its_seed() {
    let first = story(1, false).await;
    assert_eq!(first, story(1, false).await);
    assert_eq!(first, story(1, true).await);
    assert_ne!(first, story(2, false).await);
    for part in ["made", "before its effect", "after its effect", "did not answer"] {
        assert!(first.iter().any(|line| line.contains(part)), "no `{part}` in {first:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn chaos_knows_before_from_after() {
    let labels = Labels::default();
    let bare = MemoryProvider::new();
    let provider = Layered::new(Arc::new(bare.clone())).with(all(|rates| rates.fail_before = 1000)).build();
    assert_eq!(provider.create(spec("a")).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert!(bare.list(&labels).await.unwrap().is_empty());
    let provider = Layered::new(Arc::new(bare.clone())).with(all(|rates| rates.fail_after = 1000)).build();
    assert_eq!(provider.create(spec("a")).await.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(bare.list(&labels).await.unwrap().len(), 1, "the effect happened");
}

#[tokio::test(start_paused = true)]
async fn chaos_cuts_output() {
    let provider = Layered::new(memory()).with(all(|rates| rates.cut_output = 1000)).build();
    let sandbox = provider.create(spec("a")).await.unwrap();
    let execution = sandbox.exec(CommandSpec::shell("while :; do echo x; sleep 0.1; done")).await.unwrap();
    let control = Arc::clone(&execution.control);
    let error = execution.collect(1 << 20).await.unwrap_err();
    assert_eq!((error.kind(), error.operation()), (ErrorKind::Unavailable, "execution.output"));
    control.cancel().await.unwrap();
    assert_eq!(control.verdict().await, Verdict::Cancelled);
}

/// Layers without faults change nothing that the suite can see; a sample keeps this test short.
#[tokio::test(flavor = "multi_thread")]
async fn a_layered_provider_behaves_like_a_bare_one() {
    let provider = Layered::new(memory())
        .with(DeadlineLayer::default())
        .with(LimitLayer::new(64, 1024))
        .with(RetryLayer::default())
        .with(TraceLayer)
        .build();
    let names =
        ["a_fork", "f27_a_last", "f39_a_cancel", "a_resize", "f60_readers", "the_environment", "a_name_is"];
    let cases = suite::cases(&provider.capabilities());
    let sample: Vec<_> =
        cases.into_iter().filter(|case| names.iter().any(|name| case.name().starts_with(name))).collect();
    assert_eq!(sample.len(), names.len());
    for case in sample {
        case.run(&provider).await.unwrap();
    }
    assert!(suite::leftovers(&provider).await.unwrap().is_empty());
}

/// A suite that passes everything would prove nothing.
#[tokio::test(flavor = "multi_thread")]
async fn the_suite_fails_a_provider_that_loses_output_or_answers() {
    let cases = suite::cases(&memory().capabilities());
    let case = |name: &str| *cases.iter().find(|case| case.name() == name).unwrap();
    let cutting = Layered::new(memory()).with(all(|rates| rates.cut_output = 1000)).build();
    let error = case("f34_output_after_a_long_silence").run(&cutting).await.unwrap_err();
    assert_eq!(error.operation(), "execution.output");
    assert!(suite::leftovers(&cutting).await.unwrap().is_empty(), "a failed case cleans up too");
    let losing = Layered::new(memory()).with(all(|rates| rates.fail_after = 1000)).build();
    assert!(case("a_sandbox_is_found_by_id_and_by_name").run(&losing).await.is_err());
}
