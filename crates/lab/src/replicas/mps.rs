//! NVIDIA's MPS: one process that has the card for all others, whose kernels then run side by
//! side. It is started for one measurement, in folders of its own, and ended after it.

use std::{
    io::Write as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, ensure};

const CONTROL: &str = "nvidia-cuda-mps-control";

/// Started; ends when it is dropped.
pub struct Mps {
    control: PathBuf,
    folder: tempfile::TempDir,
}

impl Mps {
    /// An error says why it does not run here.
    pub fn start() -> anyhow::Result<Mps> {
        let control = cuda::tool(CONTROL)
            .with_context(|| format!("there is no {CONTROL}, which comes with the driver"))?;
        let mps = Mps {
            control,
            folder: tempfile::tempdir()?,
        };
        for folder in [mps.pipes(), mps.logs()] {
            std::fs::create_dir(folder)?;
        }
        let status = mps
            .command()
            .arg("-d")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .with_context(|| mps.control.display().to_string())?;
        ensure!(
            status.success(),
            "{CONTROL} -d ended with {status}{}",
            mps.last_words()
        );
        Ok(mps)
    }

    /// What a process must have in its environment to be served.
    pub fn environment(&self) -> [(&'static str, PathBuf); 2] {
        [
            ("CUDA_MPS_PIPE_DIRECTORY", self.pipes()),
            ("CUDA_MPS_LOG_DIRECTORY", self.logs()),
        ]
    }

    /// Processes that it serves. One that is not served may run all the same, by itself.
    pub fn clients(&self) -> anyhow::Result<usize> {
        let servers = self.ask("get_server_list")?;
        let mut clients = 0;
        for server in servers.split_whitespace() {
            let list = self.ask(&format!("get_client_list {server}"))?;
            clients += list.split_whitespace().count();
        }
        Ok(clients)
    }

    /// The end of what it wrote down, for errors.
    pub fn last_words(&self) -> String {
        let of = |name: &str| std::fs::read_to_string(self.logs().join(name)).unwrap_or_default();
        let last = |text: String| text.lines().last().map(str::to_owned);
        let words = [of("server.log"), of("control.log")].into_iter();
        let words = words.filter_map(last).next();
        words.map_or(String::new(), |words| format!("; it says: {words}"))
    }

    fn pipes(&self) -> PathBuf {
        self.folder.path().join("pipes")
    }

    fn logs(&self) -> PathBuf {
        self.folder.path().join("logs")
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.control);
        command.envs(self.environment());
        command
    }

    fn ask(&self, question: &str) -> anyhow::Result<String> {
        let mut child = self
            .command()
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| display(&self.control))?;
        if let Some(mut input) = child.stdin.take() {
            writeln!(input, "{question}")?;
        }
        let output = child.wait_with_output()?;
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

fn display(path: &Path) -> String {
    path.display().to_string()
}

impl Drop for Mps {
    fn drop(&mut self) {
        // Whoever does not answer any more has ended already.
        let _ = self.ask("quit");
    }
}
