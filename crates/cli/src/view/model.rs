//! A model without a run, as the viewer's page asks about it: its header, and estimates.
//!
//! An estimate is worked out by a process of its own, `tensorscope estimate`: llama.cpp ends the
//! process that it is in where it did not expect a value, and pages stay open for long.

use std::{
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use anyhow::{Context as _, bail};
use estimate::Machines;
use gguf::{Model, Question, Summary};
use serde_json::Value;
use server::{MachineName, ModelAnswers, ModelFacts, ModelFile, ModelStructure, ModelTensor};

/// A file that is, or is called, a GGUF file: whoever means a run gives a directory.
pub fn is_model(path: &Path) -> bool {
    let is_called_so = path
        .extension()
        .is_some_and(|extension| extension == "gguf");
    !path.is_dir() && (is_called_so || path.is_file() && begins_as_model(path))
}

fn begins_as_model(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == *b"GGUF"
}

/// Its answers, as long as the file stays what it was.
pub struct OfModel {
    path: PathBuf,
    model: Model,
    machines: Vec<MachineName>,
}

impl OfModel {
    pub fn open(path: &Path) -> anyhow::Result<OfModel> {
        Ok(OfModel {
            path: path.to_owned(),
            model: Model::open(path)?,
            machines: machines()?,
        })
    }

    fn file(&self, at: u32) -> (&gguf::model::ModelFile, u64) {
        let files = self.model.files();
        let begin = files[..at as usize].iter().map(|file| file.len_bytes);
        (&files[at as usize], begin.sum())
    }

    fn estimate(&self, options: &[(&str, &str)]) -> anyhow::Result<Value> {
        // The command takes a run there as well: no paths from a page.
        let is_type = |text: &str| text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
        let versus = options.iter().find(|(key, _)| *key == "versus");
        if let Some((_, value)) = versus.filter(|(_, value)| !is_type(value)) {
            bail!("--versus: `{value}` is no type of weights");
        }
        let options = options.iter().map(|(key, value)| match value.is_empty() {
            true => format!("--{key}"),
            false => format!("--{key}={value}"),
        });
        // Also when the file has been replaced meanwhile.
        let output = Command::new("/proc/self/exe")
            .arg("estimate")
            .args(options)
            .args(["--json", "--"])
            .arg(&self.path)
            .env("GGML_NO_BACKTRACE", "1")
            .stdin(Stdio::null())
            .output();
        let output = output.context("the estimate cannot be started")?;
        match output.status.success() {
            true => Ok(serde_json::from_slice(&output.stdout)?),
            false => bail!(why(&output)),
        }
    }
}

/// The line in which an estimate that failed said what is wrong; others may stand before it.
fn why(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    let own = ["tensorscope: ", "error: "];
    let own = own.map(|begin| said.lines().rev().find_map(|line| line.strip_prefix(begin)));
    let assertion = said.find("GGML_ASSERT").map(|at| &said[at..]);
    let assertion = assertion.and_then(|text| text.lines().next());
    match (own.into_iter().flatten().next(), assertion) {
        (_, Some(assertion)) => {
            format!("llama.cpp did not expect these values together: {assertion}")
        }
        (Some(line), None) => line.to_owned(),
        (None, None) => format!("the estimate ended without an answer: {}", output.status),
    }
}

/// Of the table that is built in.
fn machines() -> anyhow::Result<Vec<MachineName>> {
    let machines = Machines::built_in()?.machines.into_iter();
    let named = machines.map(|machine| MachineName {
        kind: machine.kind.name().to_owned(),
        memory_bytes: machine.memory_bytes(),
        name: machine.name,
    });
    Ok(named.collect())
}

impl ModelAnswers for OfModel {
    fn facts(&self) -> Result<ModelFacts, String> {
        let summary = Summary::new(&self.model, &Question::default());
        let path = self.path.display().to_string();
        let file_name = self.path.file_stem();
        let file_name = file_name.map(|name| name.to_string_lossy().into_owned());
        Ok(ModelFacts {
            name: summary.name.or(file_name).unwrap_or_else(|| path.clone()),
            path,
            architecture: summary.architecture,
            size_bytes: summary.file_bytes,
            tensor_bytes: summary.tensor_bytes,
            parameters: summary.parameters,
            active_parameters: summary.active_parameters,
            bits_per_parameter: summary.bits_per_parameter,
            max_context: summary.context_length,
            layers: summary.layer_count,
            embedding_length: summary.embedding_length,
            vocabulary: summary.vocabulary,
            experts: summary.expert_count,
            experts_used: summary.expert_used_count,
            machines: self.machines.clone(),
        })
    }

    fn structure(&self) -> Result<ModelStructure, String> {
        let numbers = 0..self.model.files().len();
        let files = numbers.clone().map(|at| {
            let (file, begin) = self.file(at as u32);
            let name = file.path.file_name();
            ModelFile {
                name: name.map_or_else(String::new, |name| name.to_string_lossy().into_owned()),
                size_bytes: file.len_bytes,
                begin,
            }
        });
        let tensors = numbers.flat_map(|at| self.model.tensors_by_place(at));
        let tensors = tensors.map(|tensor| ModelTensor {
            name: tensor.name.to_string(),
            ty: tensor.ty.name().to_owned(),
            shape: tensor.shape().to_vec(),
            layer: tensor.meaning.layer,
            component: tensor.meaning.component.name().to_owned(),
            role: tensor.meaning.role.to_string(),
            file: tensor.file,
            file_offset: tensor.file_offset,
            begin: self.file(tensor.file).1 + tensor.file_offset,
            size_bytes: tensor.size_bytes,
            experts: tensor
                .expert_slices()
                .map_or(0, |slices| slices.count as u32),
        });
        Ok(ModelStructure {
            files: files.collect(),
            tensors: tensors.collect(),
        })
    }

    fn estimate(&self, options: &[(&str, &str)]) -> Result<Value, String> {
        self.estimate(options).map_err(|error| format!("{error:#}"))
    }
}
