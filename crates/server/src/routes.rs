//! Which address asks what.
//!
//! ```text
//! /TOKEN/                the page          assets
//! /TOKEN/api/runs        the runs
//! /TOKEN/api/compare     two of them
//! /TOKEN/api/model       the model that is shown without a run, or null; below it
//!            /structure  its tensors and their places
//!            /estimate   memory and speed, for options of `model::ESTIMATE_KEYS`
//! /TOKEN/api/R/sql       a query, by POST; of each `page=` at most one
//! /TOKEN/api/R/VIEW      one of `VIEWS` about run R
//! ```
//!
//! Everything else is 404. Handlers only read parameters here; the work is done
//! on blocking threads.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, Path, RawQuery, State, rejection::BytesRejection},
    middleware,
    response::Redirect,
    routing::{get, post},
};

use crate::{
    answers::{MAX_SQL_ROWS, RunName, TimedSqlAnswer},
    assets::Page,
    guard::{self, Guard, not_found},
    model,
    parameters::{Parameters, number, quoted},
    reply::{Refusal, Reply},
    viewer::{Host, Pace},
    views::VIEWS,
};

/// Longest query.
pub const MAX_SQL_BYTES: usize = 64 << 10;
/// Longest name that a page gives itself.
const MAX_PAGE_BYTES: usize = 64;

pub(crate) type Answer = Result<Reply, Refusal>;

pub(crate) fn router(host: Arc<Host>, page: Page, guard: Guard) -> Router {
    let root = format!("/{}", guard.token.as_str());
    let mut router = Router::new();
    for asset in page.assets() {
        let path = format!("{root}/{}", asset.name);
        router = router.route(&path, get(move || async move { asset.response() }));
    }
    // Relative addresses in the page need the slash.
    let slashed = format!("{root}/");
    router
        .route(
            &root,
            get(move || async move { Redirect::permanent(&slashed) }),
        )
        .route(&format!("{root}/api/runs"), get(runs))
        .route(&format!("{root}/api/compare"), get(compare))
        .route(&format!("{root}/api/model"), get(model::facts))
        .route(
            &format!("{root}/api/model/structure"),
            get(model::structure),
        )
        .route(&format!("{root}/api/model/estimate"), get(model::estimate))
        .route(&format!("{root}/api/{{run}}/sql"), post(sql))
        .route(&format!("{root}/api/{{run}}/{{view}}"), get(view))
        .fallback(|| async { not_found() })
        .layer(DefaultBodyLimit::max(MAX_SQL_BYTES))
        .layer(middleware::from_fn_with_state(guard, guard::check))
        .with_state(host)
}

async fn runs(State(host): State<Arc<Host>>, RawQuery(query): RawQuery) -> Answer {
    Parameters::read(&query.unwrap_or_default(), &[])?;
    let runs = host.runs.iter().enumerate();
    let list: Vec<RunName> = runs.map(|(number, run)| run.brief(number)).collect();
    Reply::json(&list)
}

async fn view(
    State(host): State<Arc<Host>>,
    Path((run, name)): Path<(String, String)>,
    RawQuery(query): RawQuery,
) -> Answer {
    let run = host.run(run_number(&run)?)?;
    let Some(view) = VIEWS.iter().find(|view| view.name == name) else {
        let known: Vec<&str> = VIEWS.iter().map(|view| view.name).collect();
        return Err(Refusal::Missing(format!(
            "a run has no {}; ask for one of {}",
            quoted(&name),
            known.join(", ")
        )));
    };
    let parameters = Parameters::read(&query.unwrap_or_default(), view.keys)?;
    host.work(view.pace, move || (view.ask)(&run, &parameters))
        .await
}

async fn compare(State(host): State<Arc<Host>>, RawQuery(query): RawQuery) -> Answer {
    let parameters = Parameters::read(&query.unwrap_or_default(), &["a", "b"])?;
    let [a, b] = ["a", "b"].map(|key| parameters.required(key));
    let (a, b) = (a?, b?);
    host.run(a)?;
    host.run(b)?;
    let comparisons = host.comparisons.clone();
    host.work(Pace::Analysis, move || {
        // Both exist, so both are places in a list.
        let comparison = comparisons.compare(a as usize, b as usize);
        Reply::json(&comparison.map_err(Refusal::Failed)?)
    })
    .await
}

async fn sql(
    State(host): State<Arc<Host>>,
    Path(run): Path<String>,
    RawQuery(query): RawQuery,
    body: Result<Bytes, BytesRejection>,
) -> Answer {
    let run = host.run(run_number(&run)?)?;
    let parameters = Parameters::read(&query.unwrap_or_default(), &["page"])?;
    let page = parameters.text("page").unwrap_or_default();
    if page.len() > MAX_PAGE_BYTES {
        return Err(Refusal::BadInput("the name of the page is too long".into()));
    }
    // Who gives none has no other query.
    let turn = (!page.is_empty()).then(|| host.pages.take(page));
    let body = body.map_err(|rejection| {
        if rejection.status() == axum::http::StatusCode::PAYLOAD_TOO_LARGE {
            Refusal::TooLong(format!(
                "the query is longer than {MAX_SQL_BYTES} bytes; shorten it"
            ))
        } else {
            Refusal::BadInput("the query did not arrive; send it again".to_owned())
        }
    })?;
    let text = String::from_utf8(body.to_vec())
        .map_err(|_| Refusal::BadInput("the query is not UTF-8".to_owned()))?;
    let is_unwanted = Arc::new(AtomicBool::new(false));
    // Dropped with this future: when it is done, or when the one who asked has gone.
    let _unwanted = SetOnDrop(is_unwanted.clone());
    let answer = host.work(Pace::Query, move || {
        let start = Instant::now();
        let answer = run.answers.sql(&text, &is_unwanted);
        let mut answer = answer.map_err(Refusal::BadInput)?;
        answer.is_cut |= answer.rows.len() > MAX_SQL_ROWS;
        answer.rows.truncate(MAX_SQL_ROWS);
        Reply::json(&TimedSqlAnswer {
            answer,
            seconds: start.elapsed().as_secs_f64(),
        })
    });
    let Some(turn) = turn else {
        return answer.await;
    };
    tokio::select! {
        answer = answer => answer,
        () = turn.replaced() => Err(Refusal::Replaced(
            "replaced by a newer query of the same page".to_owned(),
        )),
    }
}

struct SetOnDrop(Arc<AtomicBool>);

impl Drop for SetOnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn run_number(text: &str) -> Result<u64, Refusal> {
    number("run", text).map_err(|_| {
        Refusal::Missing(format!(
            "{} is not a run; runs are counted from 0, see api/runs",
            quoted(text)
        ))
    })
}
