//! Pages of listings: each shard gives a part that is bounded in messages and bytes and says up to which id it is whole;
//! the parts are merged by id up to where all of them are whole, again within the bounds, so that an answer always fits a
//! frame.

use overtake_base::MessageId;
use overtake_base::limits::{LISTED_BYTES_MAX, PAGE_BYTES_MAX};
use overtake_queue::answer::{DeadLetterView, MessageView};
use overtake_queue::entry::Payload;

/// One shard's part of a listing, in the order of ids.
#[derive(Debug)]
pub struct Page<T> {
    /// What was found.
    pub items: Vec<T>,
    /// Everything up to this id is here; none where there is nothing beyond either.
    pub upto: Option<MessageId>,
}

/// Something that can be listed.
pub(crate) trait Listed {
    fn id(&self) -> MessageId;
    /// About how many bytes it takes in an answer, never less.
    fn bytes(&self) -> usize;
}

impl Listed for MessageView {
    fn id(&self) -> MessageId {
        self.id
    }

    fn bytes(&self) -> usize {
        LISTED_BYTES_MAX + self.payload.length as usize
    }
}

impl Listed for DeadLetterView {
    fn id(&self) -> MessageId {
        self.id
    }

    fn bytes(&self) -> usize {
        let history: usize = self.history.iter().map(|(_, what)| what.len() + 16).sum();
        LISTED_BYTES_MAX + self.payload.length as usize + self.last_error.len() + history
    }
}

impl<T: Listed> Listed for (T, Payload) {
    fn id(&self) -> MessageId {
        self.0.id()
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

/// Cuts what a shard found to a page; the id up to which it is whole, where something was cut off. One item always
/// passes.
pub(crate) fn cut_page<T: Listed>(mut found: Vec<T>, limit: usize) -> (Vec<T>, Option<MessageId>) {
    let mut bytes = 0;
    let fitting = found.iter().take(limit).take_while(|item| {
        bytes += item.bytes();
        bytes <= PAGE_BYTES_MAX
    });
    let fitting = fitting.count().max(1);
    if fitting >= found.len() {
        return (found, None);
    }
    found.truncate(fitting);
    let upto = found.last().map(Listed::id);
    (found, upto)
}

/// Merges the shards' pages to one; the id to go on after, where there is more.
pub(crate) fn merge_pages<T: Listed>(
    pages: impl Iterator<Item = Page<T>>,
    limit: usize,
) -> (Vec<T>, Option<MessageId>) {
    let mut found = Vec::new();
    let mut upto = None;
    for page in pages {
        found.extend(page.items);
        upto = match (upto, page.upto) {
            (Some(one), Some(other)) => Some(MessageId::min(one, other)),
            (one, other) => one.or(other),
        };
    }
    found.retain(|item| upto.is_none_or(|upto| item.id() <= upto));
    found.sort_by_key(Listed::id);
    let (found, cut) = cut_page(found, limit);
    (found, cut.or(upto))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, PartialEq, Debug)]
    struct Item(u128, usize);

    impl Listed for Item {
        fn id(&self) -> MessageId {
            MessageId(self.0)
        }

        fn bytes(&self) -> usize {
            self.1
        }
    }

    /// What is listed after `after`, as shards and their caller do it.
    fn list(shards: &[Vec<Item>], after: Option<u128>, limit: usize) -> (Vec<Item>, Option<MessageId>) {
        let pages = shards.iter().map(|shard| {
            let found = shard.iter().filter(|item| after.is_none_or(|after| item.0 > after));
            let (items, upto) = cut_page(found.take(limit + 1).cloned().collect(), limit);
            Page { items, upto }
        });
        merge_pages(pages, limit)
    }

    proptest! {
        #[test]
        fn pages_show_everything_once_and_each_fits(
            sizes in prop::collection::vec((0..4usize, 1..PAGE_BYTES_MAX), 0..60),
            limit in 1..20usize,
        ) {
            let mut shards = vec![Vec::new(); 4];
            let all: Vec<Item> = (1u128..).zip(&sizes).map(|(id, (_, bytes))| Item(id, *bytes)).collect();
            for (item, (shard, _)) in all.iter().zip(&sizes) {
                shards[*shard].push(item.clone());
            }
            let (mut seen, mut after) = (Vec::new(), None);
            loop {
                let (page, next) = list(&shards, after, limit);
                prop_assert!(page.len() <= limit);
                prop_assert!(page.len() == 1 || page.iter().map(Listed::bytes).sum::<usize>() <= PAGE_BYTES_MAX);
                prop_assert!(next.is_none() || !page.is_empty(), "every page brings the caller on");
                seen.extend(page);
                match next {
                    Some(next) => after = Some(next.0),
                    None => break,
                }
            }
            prop_assert_eq!(seen, all);
        }
    }
}
