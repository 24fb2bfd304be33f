// What kernels are made for, told by what it can do. Stages ask for a capability; which machine it is, only target.cpp
// and the emitters know.
#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "support/cpu.h"
#include "support/gpu.h"

namespace trainc {

/// docs/targets.md says who asks for each.
struct Target {
  // Its names: what a plan says of itself, and who makes code of its nests.
  std::string cpu;        // plan::Plan::cpu: the level of instructions that is needed at least; "" on a device
  std::string device;     // plan::Plan::device; "" on the CPU
  std::string generator;  // "llvm", "nvrtc", "nests", or another that is registered (compiler/code_generator.h)
  /// As target_of knows it.
  std::string name() const { return device.empty() ? "cpu" : device; }

  // What a core computes with, and what work is cut for.
  CacheSizes caches = {};
  int f32_lanes = 8;                     // f32 numbers in a vector register
  int vector_registers = 16;             // that a micro-kernel's sums may fill
  bool has_bf16_dot = false;             // products of pairs of bf16, added up in f32, as one vector instruction
  bool has_tiles = false;                // tile registers, and products of them
  bool transposes_in_registers = false;  // squares of elements are transposed in vector registers
  bool has_wide_totals = false;          // a sum of f32 may be kept in f64 at little cost

  // How a kernel runs.
  // As blocks of threads, with shared memory and barriers: nests are mapped to them (lower/map_device.h).
  bool launches_blocks = false;
  int multiprocessors = 0;           // that blocks are spread over
  bool draws_in_kernels = false;     // a mask is drawn by a kernel, with the generator of the device's framework
  bool has_tf32 = false;             // f32 products may be made in tf32, where the user lets them
  bool has_vendor_products = false;  // matrix products of the vendor's library (plan::Product)

  // What plans may hold.
  bool shifts_arguments = false;   // a kernel's arguments may be shifted (plan::Step::shifts)
  bool writes_in_place = false;    // a kernel's result may lie over its operand
  bool masks_as_bits = false;      // a mask may take a bit an element
  bool skips_steps = false;        // a bool of the run may keep a kernel from running (plan::Step::guard)
  bool fuses_chains = false;       // contractions with rows between them may be one kernel (GroupKind::MatmulChain)
  bool chunks_losses = false;      // a loss over many classes may be computed some rows at a time
  bool shares_kernels = false;     // one kernel may serve plans of different sizes
  bool measures = false;           // kernels can be timed while a plan is compiled: tune="max"
  bool measures_products = false;  // the same of the vendor's library's algorithms

  bool tunes() const { return measures || measures_products; }  // whether tune="max" measures anything
  bool operator==(const Target&) const = default;
};

Target cpu_target(CpuLevel = CpuLevel::Avx2, const CacheSizes& = {});
/// Its kernels do not depend on the CPU beside it.
Target gpu_target(Gpu);

/// The target of this name, beside (or on) such a CPU; InternalError where its capabilities exclude each other. "cpu",
/// "interpret" (nests of sm_90a as text, which the interpreter runs), "sm_80", ..., or one that was registered.
/// UserError for another word, with the words there are.
Target target_of(std::string_view name, CpuLevel, const CacheSizes& = {});
using MakeTarget = std::function<Target(CpuLevel, const CacheSizes&)>;
/// From any thread; a name that is there already is replaced.
void register_target(std::string name, MakeTarget);

}  // namespace trainc
