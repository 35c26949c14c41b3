//! The layout of the rows of a batch in memory, and reading a row by a block.

use cuda_std::{Ptr, PtrMut, device_inline, global, group, thread, unroll};

use crate::NO_ROW;
use crate::select::entry::{self, EMPTY};
use crate::select::keys::Key;

/// A batch of rows of keys: evenly spaced, or with given starts; of one length, or of given lengths.
#[group]
pub struct KeyTable {
    /// The keys of all rows, of the type of the kernel's key: up to the end of the last row.
    pub keys: Ptr<u8>,
    /// The id of each key, at the index of the key; absent: the id is the position in the row. A key with the id
    /// `NO_ROW` is ignored. Of equal keys the one with the lower id is better.
    pub ids: Option<Ptr<u32>>,
    /// Distance from one row to the next in keys, if `starts` is absent.
    pub stride: u64,
    /// The start of each row, and one more entry: the end of the last row; absent: row r starts at r · `stride`.
    pub starts: Option<Ptr<u64>>,
    /// The length of each row; absent: a row extends to the next entry of `starts`, or has `columns` keys if `starts`
    /// is absent too.
    pub lengths: Option<Ptr<u32>>,
    /// Largest length of a row.
    pub columns: u32,
    /// 0 selects the smallest keys, `Key::FLIP` the largest.
    pub flip: u32,
}

impl KeyTable {
    /// The start and the length of row `row`.
    ///
    /// # Safety
    /// The arrays that are present have an entry for the row.
    #[device_inline]
    pub unsafe fn extent(&self, row: u32) -> (u64, u32) {
        // SAFETY: as the caller promises.
        unsafe {
            let (start, columns) = match self.starts {
                None => (row as u64 * self.stride, self.columns),
                Some(starts) => {
                    let start = global::load_nc(starts.wrapping_add(row as usize));
                    let end = global::load_nc(starts.wrapping_add(row as usize + 1));
                    (start, (end - start).min(self.columns as u64) as u32)
                }
            };
            let length = match self.lengths {
                Some(lengths) => global::load_nc(lengths.wrapping_add(row as usize)),
                None => columns,
            };
            (start, length.min(columns))
        }
    }
}

/// The results of a selection.
#[group]
pub struct SelectedRows {
    /// The selected keys, best first, of the type of the kernel's key, in rows of `stride`; the worst key where there
    /// is none.
    pub keys: PtrMut<u8>,
    /// Ids of the selected keys, laid out as `keys`; `NO_ROW` where there is none.
    pub ids: PtrMut<u32>,
    /// Distance from the results of one row to those of the next.
    pub stride: u32,
}

/// A row in global memory.
#[derive(Clone, Copy)]
pub struct Row<K: Key> {
    /// Pointer to the first key of the row.
    pub keys: *const K::Stored,
    /// The id of each key. Without ids the payload of a key is its position.
    pub ids: Option<Ptr<u32>>,
    /// Number of keys of the row.
    pub len: u32,
    /// 0, or the mask that reverses the order of keys.
    pub flip: u32,
    /// Number of the row in the batch, from which its random sample is drawn.
    pub number: u32,
}

impl<K: Key> Row<K> {
    /// Row `number` of `table`.
    ///
    /// # Safety
    /// As [`KeyTable::extent`].
    #[device_inline]
    pub unsafe fn of(table: KeyTable, number: u32) -> Row<K> {
        // SAFETY: as the caller promises.
        let (start, len) = unsafe { table.extent(number) };
        // SAFETY: a row starts among the batch's ids or at their end, where no address is 0.
        let ids = table.ids.map(|ids| unsafe { ids.advance(start as usize) });
        Row { keys: table.keys.cast::<K::Stored>().wrapping_add(start as usize), ids, len, flip: table.flip, number }
    }

    /// The entry at `position` with the raw order `raw`; [`EMPTY`] if its id is [`NO_ROW`].
    ///
    /// # Safety
    /// position < len, and the row is readable.
    #[device_inline]
    pub unsafe fn entry(&self, raw: u32, position: u32) -> u64 {
        let payload = match self.ids {
            // SAFETY: position < len, as the caller promises.
            Some(ids) => unsafe { global::load_nc(ids.wrapping_add(position as usize)) },
            None => position,
        };
        // Positions are never NO_ROW.
        if payload == NO_ROW { EMPTY } else { entry::pack(K::order(raw), payload) }
    }

    /// The raw order of the key at `position`.
    ///
    /// # Safety
    /// position < len, and the row is readable.
    #[device_inline]
    pub unsafe fn raw(&self, position: u32) -> u32 {
        // SAFETY: as the caller promises.
        K::raw_order(unsafe { K::bits(global::load_nc(self.keys.wrapping_add(position as usize))) } ^ self.flip)
    }

    /// Calls `visit(raw orders, position of the first, how many of the four exist)` until each key of the positions
    /// `from .. to` was visited once. All lanes of a warp arrive at every call together, with 4, 1 or 0 keys each.
    ///
    /// Keys are read in quads of four whose address is a multiple of four keys; `AHEAD` quads are loaded before the
    /// first is used. The keys before the first quad and behind the last are read one at a time.
    ///
    /// # Safety
    /// The row is readable, to ≤ len; all threads of the block arrive.
    #[device_inline]
    pub unsafe fn scan<const AHEAD: usize>(&self, from: u32, to: u32, mut visit: impl FnMut([u32; 4], u32, u32)) {
        let (thread, threads) = (thread::thread_idx_x(), thread::block_dim_x());
        let len = to.saturating_sub(from);
        let misaligned = (self.keys.wrapping_add(from as usize).addr() / size_of::<K::Stored>()) as u32 % 4;
        let head = ((4 - misaligned) % 4).min(len);
        let quads = (len - head) / 4;
        let first = from + head;
        let body = self.keys.wrapping_add(first as usize).cast::<K::Quad>();
        let mut base = 0;
        while base < quads {
            let mut tile = [[u32::MAX; 4]; AHEAD];
            unroll::<AHEAD>(|a| {
                let quad = base + a as u32 * threads + thread;
                if quad < quads {
                    // SAFETY: quad < quads, so its four keys lie before `to`, at an address that is a multiple of four
                    // keys.
                    tile[a] = K::quad_bits(unsafe { global::load_nc(body.wrapping_add(quad as usize)) });
                }
            });
            unroll::<AHEAD>(|a| {
                let quad = base + a as u32 * threads + thread;
                let raw = tile[a].map(|bits| K::raw_order(bits ^ self.flip));
                visit(raw, first + 4 * quad, if quad < quads { 4 } else { 0 });
            });
            base += AHEAD as u32 * threads;
        }
        if thread < 32 {
            // At most three keys before the first quad and three behind the last.
            let position = if thread < 3 { from + thread } else { first + 4 * quads + thread - 3 };
            let exists = if thread < 3 { thread < head } else { position < to };
            // SAFETY: position < to ≤ len where it exists.
            let raw = if exists { unsafe { self.raw(position) } } else { u32::MAX };
            visit([raw, u32::MAX, u32::MAX, u32::MAX], position, exists as u32);
        }
    }
}
