//! `leasehold image`: the images that were unpacked on this machine.

use std::io::Write;

use leasehold_local::image::ResolveOptions;
use leasehold_local::{LocalConfig, LocalProvider};
use leasehold_model::{ImageReference, Result};

use crate::arguments::ImageCommand;
use crate::failure::{Failure, message};

pub(crate) async fn dispatch(command: ImageCommand) -> Result<u8, Failure> {
    let provider = LocalProvider::open(LocalConfig::from_environment()?).await?;
    let images = provider.images().await?;
    match command {
        ImageCommand::List => {
            let mut output = std::io::stdout().lock();
            for image in images.list().await? {
                writeln!(output, "{}  {}", image.digest, image.references.join(" "))?;
            }
        }
        ImageCommand::Pull { image } => {
            let image = images.resolve(&ImageReference(image), &ResolveOptions::default()).await?;
            for note in &image.notes {
                message(&note.to_string());
            }
            writeln!(std::io::stdout().lock(), "{}", image.digest)?;
        }
        ImageCommand::Remove { images: references } => {
            for reference in references {
                images.remove(&ImageReference(reference)).await?;
            }
            provider.collect_images().await?;
        }
        ImageCommand::Prune => {
            let report = provider.collect_images().await?;
            message(&format!(
                "removed {} images and {} layers",
                report.images_removed, report.layers_removed
            ));
        }
    }
    Ok(0)
}
