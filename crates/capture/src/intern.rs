//! Numbers for strings, tensors and templates, and the definitions that still
//! have to be written before a record may use them.

use std::collections::HashMap;

use trace::device::{DeviceDef, Launches};
use trace::template::{Definition, Name, Template, TensorDef, encode_definitions};

use crate::names::split_number;

#[derive(Default)]
pub struct Interner {
    texts: HashMap<Vec<u8>, u32>,
    tensors: HashMap<TensorDef, u32>,
    /// By encoded form: two graphs that touch the same bytes in the same order
    /// are one template.
    templates: HashMap<Vec<u8>, u32>,
    devices: HashMap<DeviceDef, u32>,
    launches: HashMap<Launches, u32>,
    pending: Vec<Definition>,
}

impl Interner {
    pub fn text(&mut self, text: &[u8]) -> u32 {
        if let Some(&number) = self.texts.get(text) {
            return number;
        }
        let number = self.texts.len() as u32;
        self.texts.insert(text.to_vec(), number);
        self.pending.push(Definition::Text(text.to_vec()));
        number
    }

    pub fn name(&mut self, name: &[u8]) -> Name {
        let (pattern, number) = split_number(name);
        Name {
            pattern: self.text(&pattern),
            number,
        }
    }

    pub fn tensor(&mut self, tensor: TensorDef) -> u32 {
        if let Some(&number) = self.tensors.get(&tensor) {
            return number;
        }
        let number = self.tensors.len() as u32;
        self.tensors.insert(tensor.clone(), number);
        self.pending.push(Definition::Tensor(tensor));
        number
    }

    pub fn template(&mut self, template: Template) -> u32 {
        let definition = Definition::Template(template);
        let encoded = encode_definitions(std::slice::from_ref(&definition));
        let next = self.templates.len() as u32;
        let number = *self.templates.entry(encoded).or_insert(next);
        if number == next {
            self.pending.push(definition);
        }
        number
    }

    pub fn device(&mut self, device: DeviceDef) -> u32 {
        let next = self.devices.len() as u32;
        let number = *self.devices.entry(device.clone()).or_insert(next);
        if number == next {
            self.pending.push(Definition::Device(device));
        }
        number
    }

    pub fn launches(&mut self, launches: Launches) -> u32 {
        let next = self.launches.len() as u32;
        let number = *self.launches.entry(launches.clone()).or_insert(next);
        if number == next {
            self.pending.push(Definition::Launches(launches));
        }
        number
    }

    /// Notes what a token stands for; the caller does so once per token.
    pub fn token(&mut self, id: u32, text: &[u8]) {
        self.pending.push(Definition::Token {
            id,
            text: text.to_vec(),
        });
    }

    /// What has to be written first; `written` when it was.
    pub fn pending(&self) -> &[Definition] {
        &self.pending
    }

    pub fn written(&mut self) {
        self.pending.clear();
    }
}
