// Operands of a contraction into panels: copies along the contiguous direction, in runs, or transposed through a
// staging tile.
#include "lower/contraction_builder.h"
#include "support/division.h"

namespace trainc::lower {

template <class Copy>
Stmt ContractionBuilder::fill_along_k(int buffer, const Expr& at, const Expr& first, const Expr& depth, Copy copy) {
  Expr elements = odd() ? minimum(depth * 2, integer(elements_of_k_) - first * 2) : depth * each();
  // With a fixed blocking, stages of the panel may begin beyond the end of k.
  if (odd() && spec_.fixed_blocking) elements = apply(Op::Max, {integer(0), elements});
  Stmt fill = copy(first * each(), elements);
  if (!odd()) return fill;
  return block({fill, loop(LoopKind::Serial, "rest", depth * 2 - elements,
                           [&](const Expr& i) { return store(buffer, at * 2 + elements + i, zero(element_)); })});
}

template <class Read>
Stmt ContractionBuilder::copy_along_k(int buffer, const Expr& at, const Expr& first, const Expr& depth, Read read) {
  return fill_along_k(buffer, at, first, depth, [&](const Expr& from, const Expr& count) {
    return loop(
        LoopKind::Vector, "k", count, [&](const Expr& k) { return store(buffer, at * each() + k, read(from + k)); },
        element_lanes());
  });
}

template <class Copy>
Stmt ContractionBuilder::copy_runs(int64_t run, int64_t most, bool aligned, const Expr& first, const Expr& count,
                                   int lanes, Copy copy) {
  if (aligned && run % most == 0)
    return loop(
        LoopKind::Vector, "lane", count,
        [&](const Expr& lane) { return copy(lane, floor_div(first, run), mod(first, run) + lane); }, lanes);
  return loop(LoopKind::Serial, "piece", integer((most + run - 2) / run + 1), [&](const Expr& piece) {
    const int major = nest_.add_local("run", DType::I64), begin = nest_.add_local("begin", DType::I64);
    const Expr start = nest_.local(major) * run;
    const Expr end = minimum(first + count, start + integer(run));
    return block({let(major, floor_div(first, run) + piece), let(begin, apply(Op::Max, {first, start})),
                  loop(
                      LoopKind::Vector, "lane", apply(Op::Max, {integer(0), end - nest_.local(begin)}),
                      [&](const Expr& lane) {
                        return copy(nest_.local(begin) - first + lane, nest_.local(major),
                                    nest_.local(begin) - start + lane);
                      },
                      lanes)});
  });
}

template <class Index, class Value>
Stmt ContractionBuilder::copy_padded(const Expr& count, const Expr& width, bool full, Index index, Value value,
                                     int buffer) {
  Stmt copy = loop(
      LoopKind::Vector, "lane", count, [&](const Expr& lane) { return store(buffer, index(lane), value(lane)); },
      b_.lanes);
  return full ? copy
              : block({copy, zeros(buffer, width - count, [&](const Expr& lane) { return index(count + lane); })});
}

template <class Index>
Stmt ContractionBuilder::zeros(int buffer, const Expr& count, Index index) {
  return loop(
      LoopKind::Vector, "lane", count, [&](const Expr& lane) { return store(buffer, index(lane), zero(packed_)); },
      b_.lanes);
}

Stmt ContractionBuilder::pack_lhs_block(const Expr& first_tile, const Expr& tiles) {
  if (spec_.k == 0 || b_.lhs_unpacked) return block({});
  if (lhs_in_block()) {
    if (!amx_) return block({});
    OperandsBegin begin = operands_begin();
    begin.lhs = begin.lhs + first_tile * (b_.tile_m * spec_.lhs_block.pitch / each());
    return amx_->pad_rows(tiles, depth_, begin);
  }
  if (places_rows())
    return loop(LoopKind::Serial, "tile", tiles, [&](const Expr& tile) {
      return block({pack_lhs(first_tile + tile, integer(1)), amx_->place_rows(tile, depth_)});
    });
  Stmt packed = pack_lhs(first_tile, tiles);
  return amx_ ? block({packed, amx_->pad_rows(tiles, depth_)}) : packed;
}

Stmt ContractionBuilder::pack_lhs(const Expr& first_tile, const Expr& tiles) {
  const Expr first = first_tile * b_.tile_m, rows = tiles * b_.tile_m;
  if (spec_.lhs_k_contiguous) {
    return loop(LoopKind::Serial, "row", rows, [&](const Expr& row) {
      // rows beyond the last repeat it: their sums are never read
      const Expr last = m_here_ ? minimum(first + row, m_here_ - integer(1)) : clamp(first + row, m_, b_.tile_m);
      const Expr at = lhs_index(row, integer(0));
      return with_row(last, [&](const Expr& m) {
        if (spec_.lhs_run == 0)
          return copy_along_k(lhs_, at, first_k_, depth_,
                              [&](const Expr& k) { return spec_.lhs(batch_, m, term_of(k)); });
        return fill_along_k(lhs_, at, first_k_, depth_, [&](const Expr& from, const Expr& count) {
          return copy_runs(spec_.lhs_run, pack_k_ * each(), !spec_.fixed_blocking, from, count, element_lanes(),
                           [&](const Expr& k, const Expr& major, const Expr& minor) {
                             return store(lhs_, at * each() + k, spec_.lhs_in_run(batch_, m, major, minor));
                           });
        });
      });
    });
  }
  return loop(LoopKind::Serial, "k", depth_, [&](const Expr& k) {
    const bool full = all_full(m_, b_.tile_m) && !m_here_;
    const Expr end = m_here_ ? m_here_ : m_;
    if (spec_.lhs_run > 0) {
      const Expr there = full ? rows : rest(rows, first, end);
      const bool aligned = !spec_.fixed_blocking && (places_rows() || b_.m_tasks == 1 || b_.task_m % b_.block_m == 0);
      Stmt copy = copy_runs(spec_.lhs_run, packed_rows(), aligned, first, there, b_.lanes,
                            [&](const Expr& row, const Expr& major, const Expr& minor) {
                              return store(lhs_, lhs_index(row, k), packed(first_k_ + k, [&](const Expr& kk) {
                                             return spec_.lhs_in_run(batch_, term_of(kk), major, minor);
                                           }));
                            });
      return full
                 ? copy
                 : block({copy, zeros(lhs_, rows - there, [&](const Expr& row) { return lhs_index(there + row, k); })});
    }
    return copy_padded(
        full ? rows : rest(rows, first, end), rows, full, [&](const Expr& row) { return lhs_index(row, k); },
        [&](const Expr& row) {
          return packed(first_k_ + k,
                        [&](const Expr& kk) { return spec_.lhs(batch_, row_of(first + row), term_of(kk)); });
        },
        lhs_);
  });
}

Stmt ContractionBuilder::pack_rhs_block() {
  if (spec_.k == 0 || b_.rhs_unpacked) return block({});
  const auto panels = [&](auto body) { return loop(LoopKind::Serial, "panel", panels_, body); };
  if (in_parts())
    return panels([&](const Expr& panel) { return block({pack_panel(panel), amx_->place_panel(panel, depth_)}); });
  // along the rows of memory, where they go across panels
  Stmt packed = spec_.rhs_k_contiguous
                    ? panels([&](const Expr& panel) { return pack_panel(panel); })
                    : loop(LoopKind::Serial, "k", depth_, [&](const Expr& k) {
                        return panels([&](const Expr& panel) { return pack_row_of_panel(panel, k); });
                      });
  return amx_ ? block({packed, amx_->pad_panels(panels_, depth_, operands_begin())}) : packed;
}

Stmt ContractionBuilder::pack_panel(const Expr& panel) {
  if (spec_.rhs_k_contiguous) return pack_panel_transposed(panel);
  return loop(LoopKind::Serial, "k", depth_, [&](const Expr& k) { return pack_row_of_panel(panel, k); });
}

Stmt ContractionBuilder::pack_row_of_panel(const Expr& panel, const Expr& k) {
  const bool full = all_full(n_, b_.tile_n) && !n_here_;
  const Expr n = (first_panel_ + panel) * b_.tile_n, count = up_to(b_.tile_n, n, n_, n_here_);
  if (spec_.rhs_run > 0) {
    Stmt copy = copy_runs(spec_.rhs_run, b_.tile_n, true, n, count, b_.lanes,
                          [&](const Expr& column, const Expr& major, const Expr& minor) {
                            return store(rhs_, rhs_index(panel, k, column), packed(first_k_ + k, [&](const Expr& kk) {
                                           return spec_.rhs_in_run(batch_, term_of(kk), major, minor);
                                         }));
                          });
    if (full) return copy;
    return block({copy, zeros(rhs_, integer(b_.tile_n) - count,
                              [&](const Expr& lane) { return rhs_index(panel, k, count + lane); })});
  }
  return copy_padded(
      count, integer(b_.tile_n), full, [&](const Expr& column) { return rhs_index(panel, k, column); },
      [&](const Expr& column) {
        return packed(first_k_ + k, [&](const Expr& kk) { return read_rhs(batch_, n + column, kk); });
      },
      rhs_);
}

Stmt ContractionBuilder::pack_panel_transposed(const Expr& panel) {
  const int64_t stages = ceil_div(pack_k_, stage_k_);
  return loop(LoopKind::Serial, "stage", integer(stages), [&](const Expr& stage) {
    Expr stage_k = stage * stage_k_;
    const bool full = b_.block_k % stage_k_ == 0 && all_full(k_, b_.block_k);
    Expr depth = full ? integer(stage_k_) : stages == 1 ? depth_ : rest(integer(stage_k_), stage_k, depth_);
    Stmt fill = loop(LoopKind::Serial, "column", integer(b_.tile_n), [&](const Expr& column) {
      Expr n = clamp((first_panel_ + panel) * b_.tile_n + column, n_, b_.tile_n);
      const Expr at = column * stage_row_;
      if (spec_.rhs_k_run == 0)
        return copy_along_k(stage_, at, first_k_ + stage_k, depth,
                            [&](const Expr& k) { return read_rhs(batch_, n, k); });
      const bool aligned = b_.block_k % stage_k_ == 0 && !spec_.fixed_blocking;
      return fill_along_k(stage_, at, first_k_ + stage_k, depth, [&](const Expr& from, const Expr& count) {
        return copy_runs(spec_.rhs_k_run, stage_k_ * each(), aligned, from, count, element_lanes(),
                         [&](const Expr& k, const Expr& major, const Expr& minor) {
                           return store(stage_, at * each() + k, spec_.rhs_in_k_run(batch_, n, major, minor));
                         });
      });
    });
    return block({fill, turn_stage(panel, stage_k, depth)});
  });
}

Stmt ContractionBuilder::turn_stage(const Expr& panel, const Expr& stage_k, const Expr& depth) {
  const Expr squares = floor_div(depth, b_.lanes);
  Stmt transposed = loop(LoopKind::Serial, "square", squares, [&](const Expr& square) {
    const Expr k = square * b_.lanes;
    return loop(LoopKind::Unroll, "columns", integer(b_.tile_n / b_.lanes), [&](const Expr& columns) {
      return transpose(rhs_, rhs_index(panel, stage_k + k, columns * b_.lanes), b_.tile_n, stage_,
                       (columns * (b_.lanes * stage_row_) + k) * each(), stage_row_ * each(), b_.lanes);
    });
  });
  if (all_full(k_, b_.lanes) && b_.block_k % b_.lanes == 0 && !k_here_) return transposed;
  const Expr done = squares * b_.lanes;
  return block({transposed, loop(LoopKind::Serial, "k", depth - done, [&](const Expr& k) {
                  return loop(LoopKind::Unroll, "column", integer(b_.tile_n), [&](const Expr& column) {
                    return store(rhs_, rhs_index(panel, stage_k + done + k, column),
                                 packed_at(stage_, column * stage_row_ + done + k));
                  });
                })});
}

}  // namespace trainc::lower
