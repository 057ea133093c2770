//! The views of one run: each reads its parameters, asks the index or the
//! analysis, and says the answer.

use index::{
    DiskQuery, EvalsQuery, FlameBy, HeatmapQuery, LanesQuery, MarksQuery, NodesQuery, OffsetsQuery,
    RunIndex, TokenWindow,
};

use crate::{
    answers::Unchanged,
    map,
    parameters::{Parameters, bad},
    reply::{Refusal, Reply},
    results,
    viewer::{HostedRun, Pace},
};

/// One address below `api/R/`.
pub(crate) struct View {
    pub name: &'static str,
    /// Parameters besides the filter's.
    pub keys: &'static [&'static str],
    pub pace: Pace,
    pub ask: fn(&HostedRun, &Parameters) -> Result<Reply, Refusal>,
}

pub(crate) const VIEWS: [View; 23] = [
    quick("info", &["since"], info),
    quick("tokens", &["from", "to"], tokens),
    quick("summary", &[], summary),
    quick(
        "heatmap",
        &["rows", "metric", "from", "to", "columns"],
        heatmap,
    ),
    quick(
        "offsets",
        &["t0", "t1", "o0", "o1", "w", "h", "even"],
        offsets,
    ),
    quick("marks", &["of", "t0", "t1", "o0", "o1", "w", "h"], marks),
    quick("nodes", &["t0", "t1", "w", "even"], nodes),
    quick("lanes", &["t0", "t1", "w"], lanes),
    quick("map", &["cells", "metric", "at"], map::map),
    quick("locate", &["offset"], locate),
    quick("eval", &["eval"], eval),
    quick("evals", &["from", "to", "max"], evals),
    quick("flame", &["by"], flame),
    quick("experts", &[], experts),
    quick("disk", &["at"], disk),
    View {
        keys: &["of", "scope", "measure", "grain", "pool"],
        ..analysis("chart", results::chart)
    },
    analysis("prefers", results::prefers),
    analysis("attention", results::attention),
    analysis("memory", results::memory),
    analysis("findings", results::findings),
    analysis("why", results::why),
    analysis("roofline", results::roofline),
    analysis("results", results::all),
];

type Ask = fn(&HostedRun, &Parameters) -> Result<Reply, Refusal>;

const fn quick(name: &'static str, keys: &'static [&'static str], ask: Ask) -> View {
    View {
        name,
        keys,
        pace: Pace::Quick,
        ask,
    }
}

const fn analysis(name: &'static str, ask: Ask) -> View {
    View {
        name,
        keys: &[],
        pace: Pace::Analysis,
        ask,
    }
}

/// All, or only the version where that is what the page has.
fn info(run: &HostedRun, parameters: &Parameters) -> Result<Reply, Refusal> {
    if let Some(since) = parameters.number("since")? {
        let (version, live) = run.version();
        if since == version {
            return Reply::json(&Unchanged { version, live });
        }
    }
    Reply::json(&run.info()?)
}

fn tokens(run: &HostedRun, parameters: &Parameters) -> Result<Reply, Refusal> {
    let window = TokenWindow::from_pairs(&parameters.pairs()).map_err(bad)?;
    let tokens = run.read(|index: &RunIndex| Ok(index.tokens(window)))?;
    Reply::json(&tokens)
}

fn summary(run: &HostedRun, parameters: &Parameters) -> Result<Reply, Refusal> {
    let filter = parameters.filter()?;
    let summary = run.read(|index| Ok(index.summary(&filter)))?;
    Reply::json(&summary)
}

fn heatmap(run: &HostedRun, parameters: &Parameters) -> Result<Reply, Refusal> {
    parameters.check_cells(&["columns"])?;
    let query = HeatmapQuery::from_pairs(&parameters.pairs()).map_err(bad)?;
    let filter = parameters.filter()?;
    let raster = run.read(|index| {
        let raster = index.heatmap(&query, &filter);
        raster.map_err(|error| bad(error.to_string()))
    })?;
    Reply::raster(&raster.header, &raster.values)
}

fn offsets(run: &HostedRun, parameters: &Parameters) -> Result<Reply, Refusal> {
    parameters.check_cells(&["w", "h"])?;
    let query = OffsetsQuery::from_pairs(&parameters.pairs()).map_err(bad)?;
    let filter = parameters.filter()?;
    let raster = run.read(|index| Ok(index.offsets(&query, &filter)))?;
    Reply::raster(&raster.header, &raster.values)
}

fn marks(run: &HostedRun, parameters: &Parameters) -> Result<Reply, Refusal> {
    parameters.check_cells(&["w", "h"])?;
    let query = MarksQuery::from_pairs(&parameters.pairs()).map_err(bad)?;
    let filter = parameters.filter()?;
    let raster = run.read(|index| Ok(index.marks(&query, &filter)?))?;
    Reply::raster(&raster.header, &raster.values)
}

fn disk(run: &HostedRun, parameters: &Parameters) -> Result<Reply, Refusal> {
    let query = DiskQuery::from_pairs(&parameters.pairs()).map_err(bad)?;
    let filter = parameters.filter()?;
    let disk = run.read(|index| Ok(index.disk(&query, &filter)?))?;
    Reply::json(&disk)
}

fn nodes(run: &HostedRun, parameters: &Parameters) -> Result<Reply, Refusal> {
    parameters.check_cells(&["w"])?;
    let query = NodesQuery::from_pairs(&parameters.pairs()).map_err(bad)?;
    let filter = parameters.filter()?;
    let raster = run.read(|index| Ok(index.nodes(&query, &filter)))?;
    Reply::raster(&raster.header, &raster.values)
}

fn lanes(run: &HostedRun, parameters: &Parameters) -> Result<Reply, Refusal> {
    parameters.check_cells(&["w"])?;
    let query = LanesQuery::from_pairs(&parameters.pairs()).map_err(bad)?;
    let filter = parameters.filter()?;
    let raster = run.read(|index| Ok(index.lanes(&query, &filter)))?;
    Reply::raster(&raster.header, &raster.values)
}

fn locate(run: &HostedRun, parameters: &Parameters) -> Result<Reply, Refusal> {
    let offset = parameters.required("offset")?;
    let located = run.read(|index| {
        index.locate(offset).ok_or_else(|| {
            Refusal::Missing(format!("offset {offset} lies behind the end of the model"))
        })
    })?;
    Reply::json(&located)
}

fn eval(run: &HostedRun, parameters: &Parameters) -> Result<Reply, Refusal> {
    let number = parameters.required("eval")?;
    let eval = run.read(|index| {
        index.eval(number).ok_or_else(|| {
            Refusal::Missing(format!(
                "the run has no evaluation {number}; see api/R/evals"
            ))
        })
    })?;
    Reply::json(&eval)
}

fn evals(run: &HostedRun, parameters: &Parameters) -> Result<Reply, Refusal> {
    let query = EvalsQuery::from_pairs(&parameters.pairs()).map_err(bad)?;
    let evals = run.read(|index| Ok(index.evals(&query)))?;
    Reply::json(&evals)
}

fn flame(run: &HostedRun, parameters: &Parameters) -> Result<Reply, Refusal> {
    let by = FlameBy::from_pairs(&parameters.pairs()).map_err(bad)?;
    let filter = parameters.filter()?;
    let flame = run.read(|index| Ok(index.flame(by, &filter)))?;
    Reply::json(&flame)
}

fn experts(run: &HostedRun, parameters: &Parameters) -> Result<Reply, Refusal> {
    let filter = parameters.filter()?;
    let experts = run.read(|index| Ok(index.experts(&filter)))?;
    Reply::json(&experts)
}
