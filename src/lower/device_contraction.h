// Contractions for a device: tiles of the operands in Shared memory, sums in registers, tensor cores where the operands
// allow. Takes the same spec as build_contraction.
#pragma once
#include "lower/contraction.h"
#include "support/target.h"

namespace trainc::lower {

/// Writes the loops of `spec` into `nest`: body, threads, parallel_extent, Shared and Register buffers, flops.
/// Operands that are bf16 widened to f32 go through `mma` in bf16, f32 ones in tf32 where `tf32` allows it (the
/// framework's own flag), all others through FMA. Sums run over k in one order, whatever the tile.
void build_device_contraction(LoopNest& nest, const ContractionSpec& spec, const Target&, bool tf32 = false);

}  // namespace trainc::lower
