#include "cells.h"

#include <algorithm>
#include <map>

namespace localspec {

constexpr size_t FEW_CHANGES = 32;  // up to this many cells move one by one within the order; more are merged into it at once

void Cells::reserve(int64_t n) {
    for (int64_t c = int64_t(positions_.size()); c < n; c++) positions_.push_back(int32_t(c));
}

void Cells::set(int32_t cell, int32_t position) {
    if (positions_[cell] != position) changes_.push_back({cell, position});
}

void Cells::count_pairs(int32_t cell, int by) {
    const int64_t n = int64_t(order_.size());
    if (cell > 0 && cell < n) inversions_ += by * (positions_[cell] < positions_[cell - 1]);
    if (cell + 1 < n) inversions_ += by * (positions_[cell + 1] < positions_[cell]);
}

void Cells::move(int32_t cell, int32_t position) {
    auto before = [this](int32_t a, int32_t b) { return less(a, b); };
    const auto at = std::lower_bound(order_.begin(), order_.end(), cell, before);
    const bool up = position > positions_[cell];
    count_pairs(cell, -1);
    positions_[cell] = position;
    count_pairs(cell, 1);
    if (up) {
        const auto to = std::lower_bound(at + 1, order_.end(), cell, before);
        std::rotate(at, at + 1, to);
    } else {
        const auto to = std::lower_bound(order_.begin(), at, cell, before);
        std::rotate(to, at, at + 1);
    }
}

void Cells::apply() {
    const int32_t n = int32_t(order_.size());
    if (changes_.size() <= FEW_CHANGES) {
        for (const Change &c : changes_)
            if (c.cell < n)
                move(c.cell, c.position);
            else
                positions_[c.cell] = c.position;
    } else {
        is_moved_.assign(n, 0);
        moved_.clear();
        kept_.clear();
        for (const Change &c : changes_) {
            if (c.cell < n) {
                count_pairs(c.cell, -1);
                if (!is_moved_[c.cell]) moved_.push_back(c.cell);
                is_moved_[c.cell] = 1;
            }
            positions_[c.cell] = c.position;
            if (c.cell < n) count_pairs(c.cell, 1);
        }
        for (int32_t c : order_)
            if (!is_moved_[c]) kept_.push_back(c);
        auto before = [this](int32_t a, int32_t b) { return less(a, b); };
        std::sort(moved_.begin(), moved_.end(), before);
        std::merge(kept_.begin(), kept_.end(), moved_.begin(), moved_.end(), order_.begin(), before);
    }
    changes_.clear();
}

void Cells::written(const int64_t *cells, const int32_t *positions, int64_t n) {
    std::lock_guard<std::mutex> guard(lock_);
    for (int64_t i = 0; i < n; i++) {
        if (cells[i] < 0 || cells[i] >= INT32_MAX) continue;
        reserve(cells[i] + 1);
        set(int32_t(cells[i]), positions[i]);
    }
    apply();
}

void Cells::shifted(const int32_t *deltas, int64_t n) {
    std::lock_guard<std::mutex> guard(lock_);
    reserve(n);
    for (int64_t c = 0; c < n; c++) set(int32_t(c), positions_[c] + deltas[c]);
    apply();
}

void Cells::restored(int64_t first, int64_t count, const int32_t *positions) {
    std::lock_guard<std::mutex> guard(lock_);
    reserve(first + count);
    for (int64_t i = 0; i < count; i++) set(int32_t(first + i), positions[i]);
    apply();
}

CellView Cells::view(int64_t n) {
    std::lock_guard<std::mutex> guard(lock_);
    reserve(n);
    const int64_t old = int64_t(order_.size());
    if (n != old) {
        auto before = [this](int32_t a, int32_t b) { return less(a, b); };
        if (n < old) {
            order_.erase(std::remove_if(order_.begin(), order_.end(), [n](int32_t c) { return c >= n; }), order_.end());
        } else {
            for (int64_t c = old; c < n; c++) order_.push_back(int32_t(c));
            std::sort(order_.begin() + old, order_.end(), before);
            std::inplace_merge(order_.begin(), order_.begin() + old, order_.end(), before);
        }
        inversions_ = 0;
        for (int64_t c = 1; c < n; c++) inversions_ += positions_[c] < positions_[c - 1];
    }
    return {inversions_ ? order_.data() : nullptr, positions_.data()};
}

namespace {

struct Registry {
    std::mutex lock;
    std::map<const void *, Cells> maps;
};

Registry &registry() {
    static auto *all = new Registry;  // never freed: threads may outlive static objects
    return *all;
}

}  // namespace

Cells &cells_of(const void *data) {
    std::lock_guard<std::mutex> guard(registry().lock);
    return registry().maps[data];
}

void forget_cells(const void *data, size_t size) {
    std::lock_guard<std::mutex> guard(registry().lock);
    auto &maps = registry().maps;
    maps.erase(maps.lower_bound(data), maps.lower_bound(static_cast<const char *>(data) + size));
}

}  // namespace localspec
