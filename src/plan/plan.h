// The plan: the one contract between compiling and running. Buffers with offsets, steps in order, aliases, random
// draws, provenance; can be saved and loaded. Includes: support only; the runtime includes this and nothing of the
// compiler.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "support/dtype.h"
#include "support/remark.h"

namespace trainc::plan {

using Dims = std::vector<int64_t>;

// Which memory a buffer lies in.
//   Input    the caller's index-th tensor; written only where `updated`
//   Output   the caller's index-th result: a fresh tensor, given by pointer
//   Saved    in the arena of the handle, at `offset`: slot `index`, written by the forward plan, read by the backward
//            plan; index -1: a temporary of this plan, where no slot is in use at the time
//   Temp     in this plan's own arena, at `offset`; live from its first writing step to its last use
//   Constant in Plan::constants, at `offset`
//   Extern   the memory of a framework tensor that an extern step gave back (kept until its last use)
//   Draw     (device) the runtime's own: seed and offset of one draw, two i64, written before the steps run
enum class MemorySpace : uint8_t { Input, Output, Saved, Temp, Constant, Extern, Draw };
struct Buffer {
  std::string name;
  MemorySpace space = MemorySpace::Temp;
  int64_t index = 0;   // Input, Output: which; Saved: the slot, or -1
  int64_t offset = 0;  // Saved, Temp, Constant: bytes, a multiple of 64; Temp: given by plan_memory
  DType dtype = DType::F32;
  Dims shape;         // logical
  Dims strides;       // elements; what the kernels were compiled for
  int64_t bytes = 0;  // storage needed from the pointer on
  // Temp, Saved (a temporary, or a slot that is written): has the memory of that buffer, whose last reader writes it in
  // place. Output: may be given the memory of that Input, which nobody reads once it is written
  int over = -1;
  bool updated = false;  // Input: one step overwrites it, after all that read the old value
  // dense bools, Temp or Saved: as bytes_of_bits has them (support/dtype.h), by the element's place in memory
  bool bits = false;
};

enum class StepKind : uint8_t {
  Kernel,  // calls kernels[kernel] over [0, parallel_extent) with `reads` and `writes` as `arguments` orders them
  Extern,  // calls the framework: `target`, `arguments_json`; reads -> writes (which are Extern)
  // Fills writes[0] (dense bools, in the order of memory), probability p of true. kernel < 0: the runtime draws it,
  // from the host's generator; where nothing is written, nobody reads the mask, and the generator moves on as for one
  // of `increment` elements. Else the kernel does, by Philox: its arguments are a Draw buffer and the mask, and the
  // generator moves on by `increment`.
  Random,
  // (device) the vendor's library multiplies: arguments are lhs, rhs, result, memory that it may use, and of bias,
  // addend and sums those that there are
  Product,
  // Begins the operation `target` (runtime/operation.h) with `arguments_json`, beside the steps that follow: reads ->
  // writes, of `arguments` in its order.
  Start,
  // What began with the same `token` is over after this step. Its effects are those of its Start, so that what is
  // touched meanwhile lives from the one to the other; it has no arguments.
  Wait,
};
/// Batches of matrices in a buffer: element (b, i, j) is the one at offset + b * batch_stride + i * row_stride + j *
/// column_stride; one of the last two strides is 1.
struct Matrix {
  DType dtype = DType::F32;
  int64_t offset = 0, batch_stride = 0, row_stride = 0, column_stride = 1;
};
/// Of which operand a product also gives the sums over k: lhs's [m], or rhs's [n], of the result's dtype.
enum class SumsOf : uint8_t { None, Lhs, Rhs };
/// result[m, n] = sum over k of lhs[m, k] rhs[k, n] in f32 (f64 where all are), `batch` times; rounded once, when all
/// is added. What is added has the result's dtype.
struct Product {
  int64_t batch = 0, m = 0, n = 0, k = 0;
  Matrix lhs, rhs, result;
  bool tf32 = false;    // f32 operands may be rounded
  bool bias = false;    // + bias[n], a vector side by side, the same for all batches
  bool addend = false;  // + addend[m, n], which lies as the result does
  // With one batch and no bias; the operand has its rows (lhs), or columns (rhs), side by side.
  SumsOf sums_of = SumsOf::None;
  std::string algorithm = {};  // as the library named it, where it was measured to be the fastest; "": its own choice
};
struct Step {
  StepKind kind = StepKind::Kernel;
  std::string name;
  std::vector<int> arguments;  // buffers by number, in the kernel's order (Kernel), or the inputs (Extern)
  // the effects, declared: order, aliasing and race checks need no more. A buffer in both is updated in place.
  std::vector<int> reads, writes;
  // Kernel
  int kernel = -1;
  // of each argument: bytes that are added to the buffer's pointer before the kernel gets it; empty: none (CPU)
  std::vector<int64_t> shifts;
  int64_t parallel_extent = 1;
  // Extern, Start; target of a Kernel: "copy", where each element it stores is that of its other argument at that place
  std::string target, arguments_json;
  // Start, Wait
  int token = -1;      // ties the two: 0, 1, ... for each Start of the plan; it is no buffer
  double seconds = 0;  // of a Start: estimated, until what it begins is over
  // Kernel: a buffer of one bool (among `reads`), or -1. Where that bool is not `guard_value` when the step's turn
  // comes, it may be passed over: nobody looks at what it would have been the first to write, and a buffer that it
  // writes in place (`over`, or among its reads) would hold what it holds already. So who cannot look at the bool runs
  // the step.
  int guard = -1;
  bool guard_value = true;
  // Extern
  // arguments that a result whose space is Extern may be a view of (other results are copied to where they belong)
  std::vector<int> aliases;
  // it draws from the framework's generator; its state is handed over before and taken back after
  bool random = false;
  // it may draw though nothing says so: a user's own operation, whose schema does not tell
  bool may_draw = false;
  // Random
  double p = 0;
  // how far the generator moves on: on a device, counters of each of Philox's sequences; of a mask that nobody reads,
  // on the host, elements
  int64_t increment = 0;
  // Product
  Product product;
  // provenance
  int64_t flops = 0, bytes = 0;
  std::vector<std::string> origins;
};

struct Kernel {
  std::string name;
  std::vector<uint8_t> code;  // position-independent machine code, no relocations
  int64_t entry = 0;          // offset of the entry: see emit.h for its signature
  int64_t scratch_bytes = 0;  // a thread
  int threads = 0;            // of a block; 0: a CPU's kernel
};

struct Plan {
  std::string name;
  // "": a CPU's. "sm_90a", ...: kernels are cubins, entered as emit/cuda/emit.h says. "interpret": they are loop nests
  // as text, for tests.
  std::string device;
  std::string cpu;  // level it was compiled for ("avx512"); running on a machine below it is a UserError
  std::vector<Buffer> buffers;
  std::vector<Kernel> kernels;
  std::vector<Step> steps;
  std::vector<uint8_t> constants;
  // plans as `save` gives them, which steps run again and again (support/while_operation.h)
  std::vector<std::vector<uint8_t>> bodies;
  int64_t input_count = 0;
  int64_t output_count = 0;
  // For each output: the buffer that holds it, or -1 (None). An Input buffer here means: the caller gets that very
  // input back.
  std::vector<int> outputs;
  int64_t temp_bytes = 0;          // this plan's arena
  int64_t saved_bytes = 0;         // the handle's arena (forward and backward plan agree)
  bool overwrites_saved = false;   // a run overwrites what the handle's arena holds, which it reads for the last time
  std::vector<std::string> notes;  // for explain
  std::vector<Remark> remarks;     // for explain: what was refused on the way here; of the most bytes first
};

/// An optimizer's step: one elementwise kernel over any number of tensors of any size. Kernel arguments: `inputs` in
/// order, then a pointer to the number of elements (i64). Its parallel iterations are chunks of `chunk` elements.
struct ForeachInput {
  bool scalar = false;   // one value, shared by all tensors; else a pointer a tensor
  bool written = false;  // updated in place
  DType dtype = DType::F32;
};
struct Foreach {
  std::string name, device, cpu;  // device, cpu: as Plan's
  Kernel kernel;
  std::vector<ForeachInput> inputs;
  int64_t chunk = 0;
  std::vector<std::string> origins;
};

/// Gives every Temp buffer its offset by live ranges over the steps, and sets temp_bytes. Two buffers share bytes only
/// if their live ranges are apart, or one is `over` the other. Where the handle's arena has room that no slot uses at
/// the time, a Temp becomes a Saved buffer without a slot.
void plan_memory(Plan&);
/// What a thread that runs it needs beside the plan's memory: the most that a kernel asks for.
int64_t scratch_bytes(const Plan&);
/// Throws InternalError where a plan is not sound; the list of what is checked opens verify.cpp.
void verify(const Plan&);
/// By which a kernel's dumps are found again: equal code, equal text.
std::string code_hash(const Kernel&);
/// One readable text, for dumps and reports; without its last part, the remarks, it says what runs and nothing else.
std::string print(const Plan&, bool remarks = true);
std::string print(const Product&);
/// CBOR with a checksum. Loading throws UserError for what is damaged, truncated, of another kind or version.
std::string save(const Plan&);
std::string save(const Foreach&);
Plan load(std::string_view bytes);
Foreach load_foreach(std::string_view bytes);

}  // namespace trainc::plan
