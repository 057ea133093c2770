//! One query a page: a newer one of the same page takes the place of the one under way,
//! whose asker is told so. Pages are told apart by a word that each makes up for itself.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::sync::Notify;

/// The queries under way, by page.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pages(Arc<Mutex<HashMap<String, Arc<Notify>>>>);

/// A page's turn, until it is dropped.
pub(crate) struct Turn {
    pages: Pages,
    page: String,
    replaced: Arc<Notify>,
}

impl Pages {
    /// Whoever had the turn of this page is told.
    pub fn take(&self, page: &str) -> Turn {
        let replaced = Arc::new(Notify::new());
        let before = self.map().insert(page.to_owned(), replaced.clone());
        if let Some(before) = before {
            before.notify_one();
        }
        Turn {
            pages: self.clone(),
            page: page.to_owned(),
            replaced,
        }
    }

    fn map(&self) -> MutexGuard<'_, HashMap<String, Arc<Notify>>> {
        // Nothing that is done under the lock can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Turn {
    /// Returns when a newer query has come.
    pub async fn replaced(&self) {
        self.replaced.notified().await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut map = self.pages.map();
        let is_ours = |now: &Arc<Notify>| Arc::ptr_eq(now, &self.replaced);
        if map.get(&self.page).is_some_and(is_ours) {
            map.remove(&self.page);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_asks_nothing_takes_no_room() {
        let pages = Pages::default();
        let (first, other) = (pages.take("a"), pages.take("b"));
        let second = pages.take("a");
        drop(first);
        assert_eq!(pages.map().len(), 2);
        drop((second, other));
        assert!(pages.map().is_empty());
    }
}
