// The micro-kernel of a contraction: a tile of sums over a block of k, in registers or on AMX tiles; then the epilogue.
#include "loop/width.h"
#include "lower/contraction_builder.h"

namespace trainc::lower {

Expr ContractionBuilder::lhs_at(const Expr& block_tile, const Expr& tile, const Expr& row, const Expr& k) const {
  if (!lhs_in_block()) return lhs_index(places_rows() ? row : tile * b_.tile_m + row, k);
  const Expr whole = (block_tile + tile) * b_.tile_m + row, depth = part_ == Part::Rows ? first_k_ + k : k;
  const int64_t pitch = spec_.lhs_block.pitch / each();
  return spec_.lhs_k_contiguous ? whole * pitch + depth : depth * pitch + whole;
}

Expr ContractionBuilder::rhs_element(const Expr& panel, const Expr& k, const Expr& column) const {
  if (!b_.rhs_unpacked) return nest_.load(rhs_, rhs_index(panel, k, column));
  Expr n = (first_panel_ + panel) * b_.tile_n + column;
  Expr element = packed(first_k_ + k, [&](const Expr& kk) { return read_rhs(batch_, n, kk); });
  if (n_here_) return guarded(element, apply(Op::Lt, {n, n_here_}));
  return all_full(n_, b_.tile_n) ? element : guarded(element, apply(Op::Lt, {n, n_}));
}

Expr ContractionBuilder::lhs_element(const TilePosition& at_tile, const Expr& row, const Expr& k) const {
  const Expr from = lhs_at(at_tile.block_tile, at_tile.tile, row, k);
  return spec_.lhs_k_contiguous ? packed_at(lhs_, from) : nest_.load(lhs_, from);
}

template <class Lhs>
Stmt ContractionBuilder::outer_product(const TilePosition& at_tile, const Expr& k, Lhs lhs) {
  Stmt row_of_rhs =
      vectors([&](const Expr& column) { return store(columns_, column, rhs_element(at_tile.panel, k, column)); });
  Stmt products = loop(LoopKind::Unroll, "row", integer(b_.tile_m), [&](const Expr& row) {
    int element = nest_.add_local("element", packed_);
    return block({let(element, lhs(row)), vectors([&](const Expr& column) {
                    const Expr at = row * b_.tile_n + column, a = nest_.local(element),
                               b = nest_.load(columns_, column), sum = nest_.load(sums_, at);
                    return store(sums_, at, pairs_ ? dot(a, b, sum) : fma(a, b, sum));
                  })});
  });
  return block({row_of_rhs, products});
}

Expr ContractionBuilder::has_partial(const Expr& tile, const Expr& panel) const {
  Expr has = apply(Op::Ne, {k_block_, integer(0)});
  if (before_.m) has = apply(Op::And, {has, apply(Op::Lt, {tile * b_.tile_m, before_.m})});
  if (before_.n) has = apply(Op::And, {has, apply(Op::Lt, {panel * b_.tile_n, before_.n})});
  return has;
}

Stmt ContractionBuilder::keep(const TilePosition& p, const Expr& at, const Expr& sum) const {
  return store(partial_, at,
               many_blocks()
                   ? apply(Op::Add, {nest_.load(partial_, at, has_partial(p.block_tile + p.tile, p.panel)), sum})
                   : sum);
}

template <class Asked, class Group>
Stmt ContractionBuilder::groups_with_asking(const Expr& groups, Asked asked, Group group) {
  const int64_t together = b_.groups_of_asking;
  return loop(LoopKind::Serial, "steps", floor_div(groups + integer(together - 1), together), [&](const Expr& asking) {
    const Expr first = asking * together;
    std::vector<Stmt> steps = asked(first);
    steps.push_back(together == 1 ? group(first)
                                  : loop(LoopKind::Serial, "group", up_to(together, first, groups),
                                         [&](const Expr& i) { return group(first + i); }));
    return block(std::move(steps));
  });
}

template <class LookAhead>
Stmt ContractionBuilder::products_of_unpacked(const TilePosition& p, LookAhead ahead) {
  const ContractionSpec::UnpackedOperand& unpacked = spec_.lhs_unpacked;
  const bool asks = groups_of_steps() > 0;
  const int64_t run = unpacked.k_run / each(), tiles_of_run = unpacked.row_run / b_.tile_m;
  const Expr tile = first_tile_ + p.block_tile + p.tile;
  // products of `count` steps of k, `most` at most, from step `start` of the block on: they are in run `major`, from
  // its step `minor` on
  const auto piece = [&](const Expr& start, const Expr& major, const Expr& minor, const Expr& count, int64_t most) {
    const int first = nest_.add_local("lies", DType::I64);
    const Expr at = unpacked.first(batch_, floor_div(tile, tiles_of_run), major) +
                    mod(tile, tiles_of_run) * (b_.tile_m * unpacked.row_stride) + minor * (each() * unpacked.k_stride);
    const auto product = [&](const Expr& k) {
      return outer_product(p, start + k, [&](const Expr& row) {
        return packed_from_memory(nest_.local(first) + row * unpacked.row_stride + k * (each() * unpacked.k_stride));
      });
    };
    int64_t unroll = std::min<int64_t>(cost::kUnrolledSteps, most);
    for (int64_t u : cost::kRunSteps)
      if (most % u == 0) {
        unroll = u;
        break;
      }
    const Expr groups = floor_div(count, unroll);
    const int64_t asking_steps = cost::kUnrolledSteps * b_.groups_of_asking;
    const auto asked = [&](const Expr& group) {
      return asks ? ahead(floor_div(start + group * unroll, asking_steps)) : std::vector<Stmt>();
    };
    std::vector<Stmt> body{let(first, at)};
    body.push_back(groups_with_asking(groups, asked, [&](const Expr& group) {
      return loop(LoopKind::Unroll, "step", integer(unroll),
                  [&](const Expr& i) { return product(group * unroll + i); });
    }));
    if (!(count->kind == ExprKind::Int && count->int_value % unroll == 0))
      body.push_back(loop(LoopKind::Serial, "k", count - groups * unroll,
                          [&](const Expr& k) { return product(groups * unroll + k); }));
    return block(std::move(body));
  };
  if (run >= spec_.k) return piece(integer(0), integer(0), first_k_, depth_, b_.block_k);
  if (b_.block_k % run == 0)
    return loop(LoopKind::Serial, "run", floor_div(depth_, run), [&](const Expr& i) {
      return piece(i * run, k_block_ * (b_.block_k / run) + i, integer(0), integer(run), run);
    });
  if (run % b_.block_k == 0) return piece(integer(0), floor_div(first_k_, run), mod(first_k_, run), depth_, b_.block_k);
  return loop(LoopKind::Serial, "run", integer((b_.block_k + run - 2) / run + 1), [&](const Expr& i) {
    const int major = nest_.add_local("run", DType::I64), begin = nest_.add_local("begin", DType::I64);
    const Expr start = nest_.local(major) * run, end = minimum(first_k_ + depth_, start + integer(run));
    return block({let(major, floor_div(first_k_, run) + i), let(begin, apply(Op::Max, {first_k_, start})),
                  piece(nest_.local(begin) - first_k_, nest_.local(major), nest_.local(begin) - start,
                        apply(Op::Max, {integer(0), end - nest_.local(begin)}), std::min(run, b_.block_k))});
  });
}

template <class LookAhead>
std::vector<Stmt> ContractionBuilder::sums_in_registers(const TilePosition& p, LookAhead ahead) {
  std::vector<Stmt> body;
  body.push_back(tile_elements([&](const Expr& at) { return store(sums_, at, zero(sum_)); }));
  if (spec_.k > 0 && b_.lhs_unpacked) {
    body.push_back(products_of_unpacked(p, ahead));
  } else if (spec_.k > 0) {
    const auto product = [&](const Expr& k) {
      return outer_product(p, k, [&](const Expr& row) { return lhs_element(p, row, k); });
    };
    const Expr groups = floor_div(depth_, cost::kUnrolledSteps);
    if (pack_k_ >= cost::kUnrolledSteps)
      body.push_back(groups_with_asking(
          groups, [&](const Expr& group) { return ahead(floor_div(group, b_.groups_of_asking)); },
          [&](const Expr& group) {
            return loop(LoopKind::Unroll, "step", integer(cost::kUnrolledSteps),
                        [&](const Expr& i) { return product(group * cost::kUnrolledSteps + i); });
          }));
    if (!all_full(k_, cost::kUnrolledSteps) || b_.block_k % cost::kUnrolledSteps != 0 || k_here_)
      body.push_back(loop(LoopKind::Serial, "k", depth_ - groups * cost::kUnrolledSteps,
                          [&](const Expr& k) { return product(groups * cost::kUnrolledSteps + k); }));
  }
  if (sums_in_block()) {
    const auto& [to, pitch, granule] = spec_.sums_block;
    body.push_back(loop(LoopKind::Unroll, "row", integer(b_.tile_m), [&, to = to, pitch = pitch](const Expr& row) {
      return vectors([&](const Expr& column) {
        const Expr at = ((p.block_tile + p.tile) * b_.tile_m + row) * pitch + p.panel * b_.tile_n + column;
        return store(to, at, nest_.load(sums_, row * b_.tile_n + column));
      });
    }));
    return body;
  }
  body.push_back(tile_elements([&](const Expr& at) { return keep(p, p.base + at, nest_.load(sums_, at)); }));
  return body;
}

template <class LookAhead>
Stmt ContractionBuilder::sums_on_tiles(const TilePosition& p, LookAhead ahead) {
  // bf16 goes on with the sums that blocks of k before this one have left: one chain, in the same order for any depth
  // of blocks. Sums in parts are added to them: their chains would be six times as long.
  const bool goes_on = many_blocks() && pairs_, adds = many_blocks() && !pairs_;
  std::vector<Stmt> body{amx_->zero_sums()};
  if (goes_on)
    body.push_back(loop(LoopKind::Serial, "before", cast(has_partial(p.block_tile + p.tile, p.panel), DType::I64),
                        [&](const Expr&) { return amx_->load_sums(partial_, p.base, b_.tile_n); }));
  body.push_back(
      amx_->multiply(lhs_in_block() ? p.block_tile + p.tile : p.tile, p.panel, depth_, ahead, operands_begin()));
  if (sums_in_block()) {
    const auto& [to, pitch, granule] = spec_.sums_block;
    body.push_back(amx_->store_sums(to, (p.block_tile + p.tile) * (b_.tile_m * pitch) + p.panel * b_.tile_n, pitch));
    return block(std::move(body));
  }
  body.push_back(amx_->store_sums(adds ? block_sums_ : partial_, adds ? integer(0) : p.base, b_.tile_n));
  if (adds)
    body.push_back(loop(
        LoopKind::Vector, "sum", integer(int64_t(b_.tile_m) * b_.tile_n),
        [&](const Expr& at) { return keep(p, p.base + at, nest_.load(block_sums_, at)); }, 4 * b_.lanes));
  return block(std::move(body));
}

Stmt ContractionBuilder::micro_kernel(const Expr& block_tile, const Expr& tile, const Expr& panel) {
  std::vector<Stmt> body;
  if (part_ == Part::None && (more_tasks() || b_.task_m > 1 || b_.task_n > 1))
    look_ahead_of_tile(body, block_tile, tile, panel);
  const TilePosition p{
      block_tile, tile, panel,
      many_blocks() ? (panel * b_.room_m + block_tile + tile) * (int64_t(b_.tile_m) * b_.tile_n) : integer(0)};
  const auto ahead = [&](const Expr& asking) { return look_ahead(block_tile, tile, panel, asking, p.base); };
  if (!amx_) {
    for (Stmt& s : sums_in_registers(p, ahead)) body.push_back(std::move(s));
  } else if (pairs_) {
    body.push_back(sums_on_tiles(p, ahead));
  } else {
    const int fits = nest_.add_local("fits", DType::I64);
    body.push_back(let(fits, cast(amx_->fits(tile, panel), DType::I64)));
    body.push_back(
        loop(LoopKind::Serial, "on_tiles", nest_.local(fits), [&](const Expr&) { return sums_on_tiles(p, ahead); }));
    body.push_back(loop(LoopKind::Serial, "as_packed", integer(1) - nest_.local(fits), [&](const Expr&) {
      return block({pack_lhs(first_tile_ + block_tile + tile, integer(1)), pack_panel(panel),
                    block(sums_in_registers(p, [](const Expr&) { return std::vector<Stmt>(); }))});
    }));
  }
  if (sums_in_block()) return block(std::move(body));

  Stmt finish = epilogue(first_tile_ + block_tile + tile, first_panel_ + panel, p.base);
  body.push_back(many_blocks() ? loop(LoopKind::Serial, "last", is_last_block(), [&](const Expr&) { return finish; })
                               : finish);
  return block(std::move(body));
}

Stmt ContractionBuilder::epilogue(const Expr& tile, const Expr& panel, const Expr& base) {
  Expr m = tile * b_.tile_m, n = panel * b_.tile_n;
  return loop(LoopKind::Serial, "row", up_to(b_.tile_m, m, m_, m_here_), [&](const Expr& row) {
    return with_row(m + row, [&](const Expr& at_row) {
      const Expr columns = up_to(b_.tile_n, n, n_, n_here_);
      const int column = nest_.add_var("column", columns->kind == ExprKind::Int ? columns->int_value : -1);
      const Expr at = nest_.var(column);
      const Stmt store = spec_.epilogue(batch_, at_row, n + at, nest_.load(partial_, base + row * b_.tile_n + at));
      return for_loop(LoopKind::Vector, column, columns, store, lanes_for({store}, b_.lanes, b_.tile_n));
    });
  });
}

}  // namespace trainc::lower
