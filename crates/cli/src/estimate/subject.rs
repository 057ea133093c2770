//! What an estimate is about: a file, a preset, a configuration or a run.

use std::path::Path;

use anyhow::{Context as _, anyhow, bail};
use bench::machine::Wanted;
use estimate::{NumberType, Shape, roofline::Types};
use rundir::error::reason;
use terminal::runs::open_run;

use super::{Args, measured, memory};

/// What the question is about.
pub struct Subject {
    pub name: String,
    pub shape: Shape,
    pub types: Types,
    /// A file, or a header of one, for llama.cpp to look at.
    pub file: Option<memory::Header>,
    /// Of a run.
    pub measured: Option<measured::Measured>,
}

impl Subject {
    pub fn of(args: &Args) -> anyhow::Result<Subject> {
        let cache = NumberType::from_name(args.key_type.name())?;
        let weights = args.weights.as_deref();
        if let Some(preset) = &args.like {
            let file = memory::Header::of_preset(preset, weights)?;
            let model = gguf::Model::open(file.path())?;
            return Ok(Subject {
                name: preset.clone(),
                shape: Shape::from_model(&model)?,
                types: Types::stored(cache),
                file: Some(file),
                measured: None,
            });
        }
        let path = args.source.as_deref().unwrap_or(Path::new(""));
        let name = path.display().to_string();
        if path
            .extension()
            .is_some_and(|extension| extension == "json")
        {
            let text = std::fs::read_to_string(path)
                .map_err(|error| anyhow!("{name}: cannot read it: {}", reason(&error)))?;
            let shape =
                Shape::from_config_json(&text).map_err(|error| anyhow!("{name}: {error}"))?;
            let weights = NumberType::from_name(weights.unwrap_or("q8_0"))?;
            return Ok(Subject {
                name,
                shape,
                types: Types::of(weights, cache),
                file: None,
                measured: None,
            });
        }
        if weights.is_some() {
            bail!("--type: the model file says its types; --versus asks about another one");
        }
        let (model, measured) = match path.is_dir() {
            true => {
                let run = open_run(path)?;
                (crate::plan::model_of(&run)?, Some(measured::of(&run)?))
            }
            false => (gguf::Model::open(path)?, None),
        };
        let first = model.files().first().map(|file| file.path.clone());
        Ok(Subject {
            name,
            shape: Shape::from_model(&model)?,
            types: Types::stored(cache),
            file: first.map(|path| memory::Header::of_file(&path)),
            measured,
        })
    }

    /// The kernels whose speed matters.
    pub fn wanted(&self, args: &Args) -> anyhow::Result<Wanted> {
        let mut wanted = Wanted::default();
        wanted.add(&self.shape, self.types)?;
        let versus = args.versus.as_deref();
        if let Some(name) = versus.filter(|name| !Path::new(name).is_dir()) {
            let other = Types::of(NumberType::from_name(name)?, self.types.kv);
            wanted.add(&self.shape, other)?;
        }
        Ok(wanted)
    }
}

/// The shape of a model that drafts.
pub fn drafter(source: &str) -> anyhow::Result<Shape> {
    let header = match Path::new(source).exists() {
        true => memory::Header::of_file(Path::new(source)),
        false => memory::Header::of_preset(source, None)
            .with_context(|| format!("--draft-model: there is no file `{source}` either"))?,
    };
    Ok(Shape::from_model(&gguf::Model::open(header.path())?)?)
}
