//! What a stream has defined, each reference checked against what was defined before.

use std::collections::BTreeMap;

use crate::{
    device::{DeviceDef, Launches},
    region::Region,
    template::{CaptureTime, Definition, Name, Template, TensorDef},
};

/// Most elements of one captured array: a batch of 65,536 tokens times 4,096 rows
/// of a transposed V cache. Bounds what a damaged template makes us allocate.
const MAX_CAPTURE_ELEMENTS: u64 = 1 << 28;

/// Everything that a stream has defined so far.
#[derive(Debug, Default)]
pub struct Definitions {
    pub texts: Vec<Vec<u8>>,
    pub tensors: Vec<TensorDef>,
    pub templates: Vec<Template>,
    pub devices: Vec<DeviceDef>,
    pub launches: Vec<Launches>,
    /// Text of the tokens that occurred, where the recorder knew it.
    pub tokens: BTreeMap<u32, Vec<u8>>,
}

impl Definitions {
    pub fn text(&self, number: u32) -> String {
        String::from_utf8_lossy(&self.texts[number as usize]).into_owned()
    }

    pub fn name(&self, name: Name) -> String {
        let pattern = &self.texts[name.pattern as usize];
        match name.number {
            None => String::from_utf8_lossy(pattern).into_owned(),
            Some(number) => {
                let split = pattern
                    .iter()
                    .position(|&b| b == 0)
                    .unwrap_or(pattern.len());
                let prefix = String::from_utf8_lossy(&pattern[..split]);
                let suffix = String::from_utf8_lossy(pattern.get(split + 1..).unwrap_or(&[]));
                format!("{prefix}{number}{suffix}")
            }
        }
    }

    pub fn tensor_name(&self, tensor: u32) -> String {
        self.name(self.tensors[tensor as usize].name)
    }

    /// `Err` if it refers to what is not defined, or cannot be.
    pub(super) fn add(&mut self, definition: Definition) -> Result<(), String> {
        match definition {
            Definition::Text(text) => self.texts.push(text),
            Definition::Tensor(tensor) => {
                self.check_text(tensor.name.pattern)?;
                self.check_text(tensor.buffer_type)?;
                self.tensors.push(tensor);
            }
            Definition::Template(template) => {
                self.check_template(&template)?;
                self.templates.push(template);
            }
            Definition::Device(device) => {
                self.check_text(device.name)?;
                self.check_text(device.description)?;
                self.devices.push(device);
            }
            Definition::Launches(launches) => {
                self.check_launches(&launches)?;
                self.launches.push(launches);
            }
            Definition::Token { id, text } => {
                self.tokens.insert(id, text);
            }
        }
        Ok(())
    }

    fn check_launches(&self, launches: &Launches) -> Result<(), String> {
        let template = self.templates.get(launches.template as usize);
        let steps = template.map(|template| template.steps.len());
        let steps =
            steps.ok_or_else(|| format!("template {} is not defined", launches.template))?;
        for kernel in &launches.kernels {
            self.check_text(kernel.name)?;
            if kernel.step.is_some_and(|step| step as usize >= steps) {
                return Err("a kernel belongs to a step that its graph does not have".into());
            }
        }
        Ok(())
    }

    fn check_text(&self, text: u32) -> Result<(), String> {
        if (text as usize) < self.texts.len() {
            Ok(())
        } else {
            Err(format!("string {text} is not defined"))
        }
    }

    fn check_template(&self, template: &Template) -> Result<(), String> {
        if let Some(device) = template.device
            && device as usize >= self.devices.len()
        {
            return Err(format!("device {device} is not defined"));
        }
        for step in &template.steps {
            self.check_text(step.op)?;
            self.check_text(step.name.pattern)?;
            for access in &step.accesses {
                if access.tensor as usize >= self.tensors.len() {
                    return Err(format!("tensor {} is not defined", access.tensor));
                }
                let end = match &access.region {
                    Region::Fixed(strided) => strided.end(),
                    Region::Indexed(indexed) => {
                        if indexed.capture as usize >= template.captures.len() {
                            return Err(format!("capture {} is not defined", indexed.capture));
                        }
                        indexed.end()
                    }
                };
                // Whether it ends inside the tensor is for whoever shows it to
                // judge; here it must only be a place in memory.
                if end.is_none() {
                    return Err(format!(
                        "a region of tensor {} is impossible",
                        access.tensor
                    ));
                }
            }
        }
        for capture in &template.captures {
            let step_exists = match capture.time {
                CaptureTime::Begin => true,
                CaptureTime::Step(step) => (step as usize) < template.steps.len(),
            };
            let pair_exists = capture
                .pair
                .is_none_or(|p| (p as usize) < template.captures.len());
            let size = capture
                .count
                .iter()
                .try_fold(1u64, |a, &n| a.checked_mul(n));
            let size_is_sane = size.is_some_and(|n| n <= MAX_CAPTURE_ELEMENTS);
            if !step_exists
                || !pair_exists
                || !size_is_sane
                || !matches!(capture.width_bytes, 2 | 4 | 8)
            {
                return Err("a capture of a template is impossible".into());
            }
        }
        Ok(())
    }
}
