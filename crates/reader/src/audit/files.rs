//! The files of a run in the order in which its trace counts them, and whose
//! tensors lie in each.

use std::{
    fs,
    ops::Deref,
    path::{Path, PathBuf},
};

use audit::pages::{PAGE_BYTES, first_pages};
use gguf::Model;

use super::AuditError;

pub struct Files<'m> {
    models: Vec<Held<'m>>,
    /// Model, and file of that model.
    places: Vec<(usize, usize)>,
    /// First page number of each file, and the number after the last.
    pub first: Vec<u64>,
}

enum Held<'m> {
    Borrowed(&'m Model),
    Owned(Box<Model>),
}

impl Deref for Held<'_> {
    type Target = Model;

    fn deref(&self) -> &Model {
        match self {
            Held::Borrowed(model) => model,
            Held::Owned(model) => model,
        }
    }
}

impl<'m> Files<'m> {
    pub fn of_model(model: &'m Model) -> Files<'m> {
        let places = (0..model.files().len()).map(|file| (0, file)).collect();
        Files::new(vec![Held::Borrowed(model)], places)
    }

    /// Of the files of any models, in any order.
    pub fn open(paths: &[PathBuf]) -> Result<Files<'static>, AuditError> {
        let mut models: Vec<Held<'static>> = Vec::new();
        let mut places = Vec::new();
        for path in paths {
            let known = place_of(&models, path);
            let place = match known {
                Some(place) => place,
                None => {
                    models.push(Held::Owned(Box::new(Model::open(path)?)));
                    place_of(&models, path).ok_or_else(|| AuditError::Stray(path.clone()))?
                }
            };
            places.push(place);
        }
        Ok(Files::new(models, places))
    }

    fn new(models: Vec<Held<'m>>, places: Vec<(usize, usize)>) -> Files<'m> {
        let lengths = places
            .iter()
            .map(|&(model, file)| models[model].files()[file].len_bytes);
        let first = first_pages(lengths);
        Files {
            models,
            places,
            first,
        }
    }

    pub fn pages(&self) -> u64 {
        self.first.last().copied().unwrap_or(0)
    }

    /// File and offset of a page.
    pub(crate) fn place_of(&self, page: u64) -> (usize, u64) {
        let file = self.first.partition_point(|&first| first <= page) - 1;
        (file, (page - self.first[file]) * PAGE_BYTES)
    }

    /// Tensors that have bytes on a page.
    pub(crate) fn tensors_of(&self, page: u64) -> Vec<String> {
        let (file, offset) = self.place_of(page);
        let Some(&(model, file)) = self.places.get(file) else {
            return Vec::new();
        };
        self.models[model]
            .tensors_by_place(file)
            .filter(|t| {
                t.file_offset < offset + PAGE_BYTES && t.file_offset + t.size_bytes > offset
            })
            .map(|t| t.name.to_string())
            .collect()
    }
}

fn place_of(models: &[Held<'_>], path: &Path) -> Option<(usize, usize)> {
    let same = |a: &Path, b: &Path| {
        a == b || fs::canonicalize(a).is_ok_and(|a| fs::canonicalize(b).is_ok_and(|b| a == b))
    };
    models.iter().enumerate().find_map(|(number, model)| {
        let file = model.files().iter().position(|f| same(&f.path, path))?;
        Some((number, file))
    })
}
