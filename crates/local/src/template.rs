//! Templates: frozen layers that sandboxes stack on.
//!
//! A sandbox's layers become a template by being moved, so that it costs the same whatever they hold; the
//! sandbox goes on with fresh layers above them. A template lives on disk until nothing stacks on it.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::path::Path;
use std::time::SystemTime;

use crate::archive;
use crate::changes::Baseline;
use leasehold_model::{BytePath, Error, ErrorKind, Result, RootSource, TemplateId};
use leasehold_provider::TemplateInfo;
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use serde::{Deserialize, Serialize};

use crate::launch::file_work::{self, remove_tree};
use crate::layer::{self, Owners, Writers};
use crate::record::Record;
use crate::root::ImageRoot;
use crate::scratch::Scratch;
use crate::store::Store;

const FILE: &str = "template.json";

/// What is kept on disk about one template.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Template {
    pub(crate) id: TemplateId,
    pub(crate) created_at: SystemTime,
    /// What its layers stack on.
    pub(crate) root: RootSource,
    /// What that root needs of its image.
    pub(crate) image: Option<ImageRoot>,
    /// The templates between it and that root, the uppermost first.
    pub(crate) below: Vec<TemplateId>,
    /// Where the workspace of its sandbox was.
    pub(crate) workspace: Option<BytePath>,
    /// The moment from which on changes of the host conflict with those that its workspace layer holds.
    #[serde(default)]
    pub(crate) baseline: Option<Baseline>,
    /// Not listed any more, or never meant to be: it goes when nothing stacks on it.
    pub(crate) hidden: bool,
}

fn cannot(what: &str, path: &Path) -> impl FnOnce(std::io::Error) -> Error {
    let message = format!("cannot {what} {}", path.display());
    move |error| Error::io("template", message, error)
}

fn taken(id: &TemplateId) -> Error {
    Error::new(ErrorKind::AlreadyExists, "template", format!("there is a template `{id}` already"))
        .with_hint("choose another name, or delete that one")
}

impl Template {
    /// The template of a sandbox's layers.
    fn of(record: &Record, id: TemplateId, hidden: bool) -> Self {
        Self {
            id,
            created_at: SystemTime::now(),
            root: record.root.clone(),
            image: record.image.clone(),
            below: record.frozen.clone(),
            workspace: record.workspace.as_ref().map(|workspace| workspace.target.clone()),
            baseline: record.workspace.as_ref().and_then(|workspace| workspace.baseline),
            hidden,
        }
    }

    pub(crate) fn info(&self) -> TemplateInfo {
        TemplateInfo { id: self.id.clone(), created_at: self.created_at }
    }

    /// The chain that a sandbox made from it stacks on.
    pub(crate) fn chain(&self) -> Vec<TemplateId> {
        std::iter::once(&self.id).chain(&self.below).cloned().collect()
    }

    fn save(&self, directory: &Path) -> Result<()> {
        let text = serde_json::to_vec(self)
            .map_err(|error| Error::new(ErrorKind::Unexpected, "template", error.to_string()))?;
        let scratch = directory.join(".template.json");
        fs::write(&scratch, text).map_err(cannot("write", &scratch))?;
        fs::rename(&scratch, directory.join(FILE)).map_err(cannot("write", directory))
    }
}

/// Reads one template; `None` when there is none of that id.
pub(crate) fn load(store: &Store, id: &TemplateId) -> Result<Option<Template>> {
    let path = store.template(id.as_str()).join(FILE);
    match fs::read(&path) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| {
            Error::new(ErrorKind::Corrupt, "template", format!("{} can't be understood", path.display()))
                .with_source(error)
        }),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(cannot("read", &path)(error)),
    }
}

/// Every template on disk.
pub(crate) fn all(store: &Store) -> Result<Vec<Template>> {
    let directory = store.template("");
    let entries = fs::read_dir(&directory).map_err(cannot("list", &directory))?;
    let names = entries.flatten().filter_map(|entry| TemplateId::new(entry.file_name().to_str()?).ok());
    let mut templates = Vec::new();
    for id in names {
        templates.extend(load(store, &id)?);
    }
    templates.sort_by_key(|left| left.created_at);
    Ok(templates)
}

/// Moves the layers of a stopped sandbox into a new template, and puts the template below the sandbox.
/// The caller holds the sandbox's lock.
pub(crate) fn freeze(store: &Store, record: &mut Record, id: TemplateId, hidden: bool) -> Result<Template> {
    let target = store.template(id.as_str());
    fs::create_dir(&target).map_err(|error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => taken(&id),
        _ => cannot("make", &target)(error),
    })?;
    let template = Template::of(record, id.clone(), hidden);
    // The template exists before the first layer moves, and the sandbox stacks on it before the first is
    // gone: a crash in between loses nothing.
    template.save(&target)?;
    let state = store.sandbox(&record.id);
    record.frozen.insert(0, id);
    record.save(&state)?;
    for layer in archive::layers(&state).map_err(cannot("list", &state))? {
        let upper = layer.join("upper");
        let frozen = target.join(layer.file_name().unwrap_or_default());
        fs::rename(&upper, &frozen).map_err(cannot("freeze", &upper))?;
        remove_tree(store.program(), &layer.join("work"))?;
    }
    Ok(template)
}

/// Copies the layers of a sandbox whose processes are frozen into a new template, which appears whole or
/// not at all. `check` is asked at the end whether they stayed frozen. The answer's second part keeps the
/// template until something stacks on it.
pub(crate) fn copy(
    store: &Store,
    record: &Record,
    id: TemplateId,
    hidden: bool,
    check: impl FnOnce() -> Result<()>,
) -> Result<(Template, Scratch)> {
    let target = store.template(id.as_str());
    if target.exists() {
        return Err(taken(&id));
    }
    let scratch = Scratch::make(store, &store.template(""))?;
    let state = store.sandbox(&record.id);
    for layer in archive::layers(&state).map_err(cannot("list", &state))? {
        let copied = scratch.path().join(layer.file_name().unwrap_or_default());
        let upper = layer.join("upper");
        match file_work::owners_of(record) {
            Some(map) => file_work::copy_layer(store.program(), &map, &upper, &copied)?,
            None => layer::copy(&upper, &copied, Owners::Kept, Writers::Outside)?,
        }
    }
    check()?;
    let template = Template::of(record, id, hidden);
    template.save(scratch.path())?;
    match renameat_with(CWD, scratch.path(), CWD, &target, RenameFlags::NOREPLACE) {
        Ok(()) => Ok((template, scratch)),
        Err(rustix::io::Errno::EXIST) => Err(taken(&template.id)),
        Err(error) => Err(cannot("make", &target)(error.into())),
    }
}

/// Keeps others from reading or removing a template's layers as long as the answer lives. Blocking.
pub(crate) fn lock(store: &Store, id: &TemplateId) -> Result<File> {
    let path = store.template(id.as_str());
    let directory = File::open(&path).map_err(cannot("open", &path))?;
    flock(&directory, FlockOperation::LockExclusive)
        .map_err(std::io::Error::from)
        .map_err(cannot("lock", &path))?;
    Ok(directory)
}

/// The moment from which on changes of the host conflict with those of a sandbox and of what it stacks
/// on.
pub(crate) fn baseline(store: &Store, record: &Record) -> Result<Option<Baseline>> {
    let mut earliest = record.workspace.as_ref().and_then(|workspace| workspace.baseline);
    for id in &record.frozen {
        let below = load(store, id)?.and_then(|template| template.baseline);
        earliest = earliest.into_iter().chain(below).min();
    }
    Ok(earliest)
}

/// Hides a template, and removes it when nothing stacks on it. One that is gone is fine.
pub(crate) fn delete(store: &Store, id: &TemplateId) -> Result<()> {
    if let Some(mut template) = load(store, id)? {
        template.hidden = true;
        template.save(&store.template(id.as_str()))?;
    }
    remove_unused(store)
}

/// Removes every hidden template that nothing stacks on.
pub(crate) fn remove_unused(store: &Store) -> Result<()> {
    loop {
        let templates = all(store)?;
        if templates.iter().all(|template| !template.hidden) {
            return Ok(());
        }
        let mut used: BTreeSet<TemplateId> = BTreeSet::new();
        for (record, _) in store.records()? {
            used.extend(record.frozen);
        }
        // What a listed template stacks on is used; what only hidden ones stack on goes layer by layer.
        let below: Vec<TemplateId> = templates
            .iter()
            .filter(|template| !template.hidden || used.contains(&template.id))
            .flat_map(|template| template.below.iter().cloned())
            .collect();
        used.extend(below);
        let unused: Vec<_> = templates.iter().filter(|one| one.hidden && !used.contains(&one.id)).collect();
        let mut removed = 0;
        for template in unused {
            let path = store.template(template.id.as_str());
            let directory = File::open(&path).map_err(cannot("open", &path))?;
            // Somebody is about to stack on it, or reads it.
            if flock(&directory, FlockOperation::NonBlockingLockExclusive).is_ok() {
                remove_tree(store.program(), &path)?;
                removed += 1;
            }
        }
        if removed == 0 {
            return Ok(());
        }
    }
}
