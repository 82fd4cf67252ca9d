// Positions of the cells of a KV cache, and their order by position.
//
// After a token tree llama.cpp refills the cells of rejected siblings, and sequences that share a cache interleave, so cells
// are not in order of position. Attention adds in order of position; these maps provide that order.
#pragma once
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace localspec {

struct CellView {
    const int32_t *order;      // cells 0 ... n - 1 by (position, cell); null: they are in order
    const int32_t *positions;  // [n]
};

// For one K tensor (one stream of it, if a cache has several). Cells that were never set have their index as position. All
// calls may come from any thread, but a view is valid only until the next call that changes something.
class Cells {
  public:
    void written(const int64_t *cells, const int32_t *positions, int64_t n);  // SET_ROWS; negative cells are skipped
    void shifted(const int32_t *deltas, int64_t n);                           // K-shift: cell i moves by deltas[i]
    void restored(int64_t first, int64_t count, const int32_t *positions);    // a state was read into these cells
    CellView view(int64_t n);  // for the same n from several threads, the work is done once

  private:
    void reserve(int64_t n);
    void set(int32_t cell, int32_t position);
    void apply();
    void move(int32_t cell, int32_t position);
    void count_pairs(int32_t cell, int by);
    bool less(int32_t a, int32_t b) const { return positions_[a] != positions_[b] ? positions_[a] < positions_[b] : a < b; }

    std::mutex lock_;
    std::vector<int32_t> positions_;
    std::vector<int32_t> order_;  // of the cells below the last view's n, sorted
    int64_t inversions_ = 0;      // neighbours among these cells whose positions decrease
    struct Change {
        int32_t cell, position;
    };
    std::vector<Change> changes_;
    std::vector<int32_t> moved_, kept_;
    std::vector<uint8_t> is_moved_;
};

// The map of a K tensor, by the address of its data (or of its stream's first cell); created on first use. The reference
// stays valid until the memory is forgotten. An address that is reused for another cache needs no care: cells are set again
// when they are written.
Cells &cells_of(const void *data);

// Drops the maps of tensors in [data, data + size), which is about to be freed.
void forget_cells(const void *data, size_t size);

}  // namespace localspec
