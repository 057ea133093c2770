//! One step of a ladder: what it changes, where its source is, and what its machine code must
//! show.

/// A source file that steps are in.
#[derive(Clone, Copy, Debug)]
pub struct File {
    /// From the root of the repository.
    pub path: &'static str,
    pub text: &'static str,
}

/// A kernel, as it is compiled for one step.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    /// As in tables and in `--steps`.
    pub name: &'static str,
    /// What it does otherwise than the step before, and what that should give: a sentence.
    pub about: &'static str,
    pub file: File,
    /// The function.
    pub function: &'static str,
    /// `NAME=VALUE`, for kernels of which there are several sizes.
    pub defines: &'static [&'static str],
    /// Instructions that prove it, as the disassembler spells their beginning (`LDG.E.128`);
    /// none for functions of the host.
    pub claims: &'static [&'static str],
}

impl Step {
    /// `path:line` of the function.
    pub fn address(&self) -> String {
        let begins = |line: &str| {
            let word = line.find(self.function);
            word.is_some_and(|at| {
                let after = line[at + self.function.len()..].chars().next();
                let before = line[..at].chars().next_back();
                let is_part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
                matches!(after, Some('(' | '<'))
                    && !is_part(before)
                    && (is_definition(line) || at == 0)
            })
        };
        let line = self
            .file
            .text
            .lines()
            .position(begins)
            .map_or(1, |line| line + 1);
        format!("{}:{line}", self.file.path)
    }

    pub fn defines(&self) -> Vec<String> {
        self.defines
            .iter()
            .map(|define| (*define).to_owned())
            .collect()
    }

    /// Whether its machine code is a card's.
    pub fn is_for_cards(&self) -> bool {
        self.file.path.ends_with(".cu")
    }
}

fn is_definition(line: &str) -> bool {
    line.contains("__global__") || line.contains("fn ") || line.contains("void ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_the_line_of_the_function() {
        let file = File {
            path: "a.cu",
            text: "// naive_two(x)\nextern \"C\" __global__ void naive_two(float* a) {}\nextern \"C\" __global__ void naive(int x) {}\n",
        };
        let step = |function| Step {
            name: "x",
            about: "",
            file,
            function,
            defines: &[],
            claims: &[],
        };
        assert_eq!(step("naive").address(), "a.cu:3");
        assert_eq!(step("naive_two").address(), "a.cu:2");
    }
}
