#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <mutex>
#include <set>

#include "bindings/bindings.h"
#include "plan/live.h"
#include "runtime/call_buffers.h"
#include "runtime/operation.h"
#include "support/error.h"
#include "support/remark_json.h"

namespace trainc::bindings {
namespace {

using nlohmann::json;
using plan::MemorySpace;
using plan::StepKind;

nb::object shape_tuple(const plan::Dims& dims) {
  nb::list list;
  for (int64_t d : dims) list.append(d);
  return nb::tuple(list);
}

/// Whether the rows of a product's matrices begin at multiples of 16 bytes, which the library is quick with.
bool rows_at_16_bytes(const plan::Product& p) {
  const plan::Matrix* matrices[] = {&p.lhs, &p.rhs, &p.result};
  return std::ranges::all_of(matrices, [](const plan::Matrix* m) {
    return std::max(m->row_stride, m->column_stride) * size_of(m->dtype) % 16 == 0;
  });
}

nb::list output_info(const CoreExecutable& e) {
  const plan::Plan& p = e.plan();
  nb::list list;
  for (int b : p.outputs) {
    if (b < 0) {
      list.append(nb::none());
      continue;
    }
    const plan::Buffer& buffer = p.buffers[b];
    list.append(nb::make_tuple(std::string(name_of(buffer.dtype)), shape_tuple(buffer.shape),
                               shape_tuple(buffer.strides), buffer.space == MemorySpace::Input ? buffer.index : -1));
  }
  return list;
}

/// Before any step: a plan that updates parameters must not stop half-way because the caller freed a tensor's memory.
void refuse_freed(const CoreExecutable& e, const runtime::Call& call) {
  for (const int b : e.read_inputs)
    if (const plan::Buffer& buffer = e.plan().buffers[b]; !call.inputs.at(buffer.index))
      throw InternalError("plan " + e.plan().name + ": no memory for " + buffer.name);
}

nb::list input_info(const CoreExecutable& e) {
  const plan::Plan& p = e.plan();
  std::vector<nb::object> infos(p.input_count, nb::none());
  for (const plan::Step& s : p.steps)
    for (int b : s.reads)
      if (p.buffers[b].space == MemorySpace::Input) infos[p.buffers[b].index] = layout(p.buffers[b]);
  nb::list list;
  for (const nb::object& i : infos) list.append(i);
  return list;
}

/// Another number wherever one word is another: each lane takes in its words by a step that can be undone.
uint64_t hash_memory(uintptr_t pointer, int64_t bytes) {
  using Lanes [[gnu::vector_size(64)]] = uint64_t;
  const char* at = reinterpret_cast<const char*>(pointer);
  const char* const end = at + bytes;
  Lanes lanes = {}, words = {};
  const auto mix = [&] { lanes += words, lanes = lanes << 7 | lanes >> 57; };
  for (; end - at >= int64_t(sizeof words); at += sizeof words) std::memcpy(&words, at, sizeof words), mix();
  words = Lanes{};
  std::memcpy(&words, at, static_cast<size_t>(end - at)), mix();
  uint64_t hash = static_cast<uint64_t>(bytes);
  for (size_t i = 0; i < sizeof lanes / 8; ++i) hash = std::rotl((hash ^ lanes[i]) * 0x100000001b3, 29);
  return hash;
}

std::vector<std::pair<int64_t, int64_t>> given_away(const CoreExecutable& e) {
  const plan::Plan& p = e.plan();
  std::vector<std::pair<int64_t, int64_t>> pairs;
  for (const plan::Buffer& b : p.buffers)
    if (b.space == MemorySpace::Output && b.over >= 0) pairs.emplace_back(p.buffers[b.over].index, b.index);
  return pairs;
}

std::vector<int64_t> updated_inputs(const CoreExecutable& e) {
  std::vector<int64_t> indices;
  for (const plan::Buffer& b : e.plan().buffers)
    if (b.space == MemorySpace::Input && b.updated) indices.push_back(b.index);
  return indices;
}

nb::dict extern_info(const CoreExecutable& e) {
  const plan::Plan& p = e.plan();
  nb::dict all;
  for (size_t i = 0; i < p.steps.size(); ++i) {
    const plan::Step& s = p.steps[i];
    if (s.kind != StepKind::Extern) continue;
    nb::list inputs, results;
    for (int b : s.arguments) inputs.append(layout(p.buffers[b]));
    for (int b : s.writes) {
      const plan::Buffer& buffer = p.buffers[b];
      const bool undefined = buffer.dtype == DType::Bool && buffer.shape == plan::Dims{0};  // graph.h, ExternAttr
      results.append(undefined ? nb::object(nb::none()) : layout(buffer));
    }
    nb::dict info;
    info["target"] = s.target;
    info["arguments"] = s.arguments_json;
    info["inputs"] = inputs;
    info["results"] = results;
    info["origins"] = nb::cast(s.origins);
    all[nb::int_(i)] = info;
  }
  return all;
}

const char* name_of(StepKind kind) {
  switch (kind) {
    case StepKind::Kernel: return "kernel";
    case StepKind::Extern: return "extern";
    case StepKind::Random: return "random";
    case StepKind::Product: return "product";
    case StepKind::Start: return "start";
    case StepKind::Wait: return "wait";
  }
  return "?";
}

/// Why the framework runs an operation: the front end's remark. Beyond a plan's most remarks, those of the fewest bytes
/// have no names.
std::string why_extern(const plan::Plan& p, const plan::Step& s) {
  for (const char* name : {s.target.c_str(), ""})
    for (const Remark& r : p.remarks)
      if (r.stage == "frontend" && r.detail == name) return r.reason;
  return "";
}

json steps_of(const runtime::Executable& e) {
  const plan::Plan& p = e.plan();
  const std::vector<runtime::StepTime> times = e.step_times();
  std::vector<std::string> codes;
  for (const plan::Kernel& k : p.kernels) codes.push_back(plan::code_hash(k));
  json steps = json::array();
  for (size_t i = 0; i < p.steps.size(); ++i) {
    const plan::Step& s = p.steps[i];
    const char* kind = name_of(s.kind);
    json step = {{"name", s.kind == StepKind::Extern ? s.target : s.name},
                 {"kind", kind},
                 {"flops", s.flops},
                 {"bytes", s.bytes},
                 {"origins", s.origins}};
    if (i < times.size()) step["seconds"] = times[i].seconds, step["time"] = json_of(times[i]);
    if (s.kernel >= 0) step["code"] = codes[s.kernel];
    if (s.kernel >= 0 && p.kernels[s.kernel].threads > 0)
      step["blocks"] = s.parallel_extent, step["threads"] = p.kernels[s.kernel].threads;
    if (s.kind == StepKind::Product) step["aligned"] = rows_at_16_bytes(s.product);
    if (s.guard >= 0) step["guard"] = (s.guard_value ? "" : "not ") + p.buffers[s.guard].name;
    if (s.kind == StepKind::Start) {
      step["operation"] = s.target;
      const runtime::Operation* operation = e.operation(i);
      const runtime::Operation::Loop loop = operation ? operation->loop() : runtime::Operation::Loop{};
      if (loop.body) step["body"] = steps_of(*loop.body), step["starts"] = loop.starts, step["trips"] = loop.trips;
    }
    if (s.token >= 0) step["token"] = s.token;
    if (s.kind == StepKind::Extern) step["reason"] = why_extern(p, s);
    steps.push_back(std::move(step));
  }
  return steps;
}

std::string report(const CoreExecutable& e) {
  const plan::Plan& p = e.plan();
  std::vector<std::string> notes = p.notes;
  for (std::string& note : e.loaded->notes()) notes.push_back(std::move(note));
  return json{{"name", p.name},
              {"cpu", p.device.empty() ? p.cpu : p.device},
              {"temp_bytes", p.temp_bytes},
              {"saved_bytes", p.saved_bytes},
              {"steps", steps_of(*e.loaded)},
              {"notes", notes},
              {"remarks", p.remarks},
              {"compile", e.compile_record}}
      .dump();
}

std::vector<void*> pointers(const std::vector<uintptr_t>& ints) {
  std::vector<void*> out(ints.size());
  std::transform(ints.begin(), ints.end(), out.begin(), [](uintptr_t i) { return reinterpret_cast<void*>(i); });
  return out;
}

/// A result of the framework: (pointer, (tensor, what it may be a view of)).
runtime::ExternTensor taken_over(nb::handle pair) {
  nb::object owner = nb::borrow(pair[1]);
  const auto copy = [owner = keep(owner)]() -> runtime::ExternTensor {
    const Locked lock;
    nb::object copied = nb::handle(static_cast<PyObject*>(owner.get()))[0].attr("clone")();
    void* data = reinterpret_cast<void*>(nb::cast<uintptr_t>(copied.attr("data_ptr")()));
    return {data, keep(std::move(copied))};
  };
  return {reinterpret_cast<void*>(nb::cast<uintptr_t>(pair[0])), keep(std::move(owner)), copy};
}

std::vector<runtime::ExternTensor> call_framework(const nb::object& callback, const plan::Plan& plan,
                                                  const plan::Step& step, const std::vector<void*>& inputs) {
  const Locked lock;
  nb::list ints;
  for (void* p : inputs) ints.append(reinterpret_cast<uintptr_t>(p));
  const nb::object results = callback(&step - plan.steps.data(), ints);
  std::vector<runtime::ExternTensor> out;
  for (nb::handle pair : results) out.push_back(taken_over(pair));
  return out;
}

bool draws_on_host(const plan::Plan& p) {
  return std::any_of(p.steps.begin(), p.steps.end(),
                     [](const plan::Step& s) { return s.kind == StepKind::Random && s.kernel < 0; });
}

/// A forked child gets a new one: a thread that is not there any more may have held it.
std::mutex& exchange_mutex() {
  static std::atomic<std::mutex*> mutex{new std::mutex};
  [[maybe_unused]] static const int at_fork = pthread_atfork(nullptr, nullptr, [] { mutex.store(new std::mutex); });
  return *mutex.load();
}

/// The framework's generator, a torch.Generator.
class FrameworkGenerator {
 public:
  explicit FrameworkGenerator(const nb::object& generator) : generator_(generator) {}
  std::vector<uint8_t> state() const {
    const Locked lock;
    return read();
  }
  /// One plan at a time, for torch lets go of the interpreter lock in these calls. The lock is taken before the
  /// interpreter's, as it must be where both are held. (An eager operation of another thread that draws just between
  /// the comparison and the setting is not seen: torch's own lock cannot be had from here.)
  bool exchange(const std::vector<uint8_t>& from, const std::vector<uint8_t>& to) const {
    const std::lock_guard one_at_a_time(exchange_mutex());
    const Locked lock;
    const nb::module_ torch = nb::module_::import_("torch");
    const nb::object bytes = nb::steal(
        PyByteArray_FromStringAndSize(reinterpret_cast<const char*>(to.data()), static_cast<Py_ssize_t>(to.size())));
    const nb::object next = torch.attr("frombuffer")(bytes, nb::arg("dtype") = torch.attr("uint8"));
    if (read() != from) return false;
    generator_.attr("set_state")(next);
    return true;
  }

 private:
  std::vector<uint8_t> read() const {
    const nb::object state = generator_.attr("get_state")();
    const auto* p = reinterpret_cast<const uint8_t*>(nb::cast<uintptr_t>(state.attr("data_ptr")()));
    return {p, p + nb::cast<size_t>(state.attr("numel")())};
  }

  const nb::object& generator_;
};

/// One run as Python asks for it, whole or in parts, with what its callbacks reach.
class Run {
 public:
  Run(const CoreExecutable& e, const std::vector<uintptr_t>& inputs, const std::vector<uintptr_t>& outputs,
      uintptr_t saved, nb::object generator, nb::object extern_call, uintptr_t temp, uintptr_t stream,
      nb::object on_step)
      : loaded_(e.loaded),
        generator_(std::move(generator)),
        extern_call_(std::move(extern_call)),
        on_step_(std::move(on_step)),
        call_{.inputs = pointers(inputs),
              .outputs = pointers(outputs),
              .saved = reinterpret_cast<void*>(saved),
              .temp = reinterpret_cast<void*>(temp),
              .stream = reinterpret_cast<void*>(stream),
              .check_signals = SignalCheck()} {
    const plan::Plan& plan = e.plan();
    refuse_freed(e, call_);
    if (draws_on_host(plan)) find_mask_generator();
    if (!generator_.is_none()) {
      call_.generator.get_state = [this] { return framework_.state(); };
      call_.generator.exchange = [this](const std::vector<uint8_t>& from, const std::vector<uint8_t>& to) {
        return framework_.exchange(from, to);
      };
    }
    if (!extern_call_.is_none())
      call_.extern_call = [this](const plan::Step& step, const std::vector<void*>& in) {
        return call_framework(extern_call_, loaded_->plan(), step, in);
      };
    if (!on_step_.is_none())
      call_.on_step = [this](int64_t step) {
        const Locked lock;
        on_step_(step);
      };
  }
  Run(const Run&) = delete;  // its callbacks know where it is
  Run& operator=(const Run&) = delete;

  void all() {
    const Unlocked unlock;
    loaded_->run(call_);
  }
  /// The steps before `end`; all, where the device knows no parts.
  void until(size_t end) {
    if (over_) return;
    const Unlocked unlock;
    if (!parts_ && !(parts_ = loaded_->start(call_))) {
      over_ = true;
      return loaded_->run(call_);
    }
    over_ = end >= loaded_->plan().steps.size();
    parts_->run_until(end);
  }

 private:
  std::shared_ptr<runtime::Executable> loaded_;
  nb::object generator_, extern_call_, on_step_;
  FrameworkGenerator framework_{generator_};
  runtime::Call call_;
  std::unique_ptr<runtime::RunInParts> parts_;
  bool over_ = false;
};

void run(CoreExecutable& e, const std::vector<uintptr_t>& inputs, const std::vector<uintptr_t>& outputs,
         uintptr_t saved, const nb::object& generator, const nb::object& extern_call, uintptr_t temp, uintptr_t stream,
         const nb::object& on_step) {
  Run(e, inputs, outputs, saved, generator, extern_call, temp, stream, on_step).all();
}

std::unique_ptr<Run> start(CoreExecutable& e, const std::vector<uintptr_t>& inputs,
                           const std::vector<uintptr_t>& outputs, uintptr_t saved, const nb::object& extern_call) {
  return std::make_unique<Run>(e, inputs, outputs, saved, nb::none(), extern_call, 0, 0, nb::none());
}

/// Of each output, the number of steps after which the plan is through with it: later ones may read a result that is
/// whole (a batch norm's gradients, from which that of its input is made), and the caller may write it.
std::vector<int64_t> output_steps(const CoreExecutable& e) {
  const plan::Plan& p = e.plan();
  const std::vector<plan::LiveRange> live = plan::live_ranges(p);
  std::vector<int64_t> steps;
  for (const int b : p.outputs) steps.push_back(b < 0 ? 0 : live[b].last + 1);
  return steps;
}

bool draws(const CoreExecutable& e) {
  return std::ranges::any_of(e.plan().steps,
                             [](const plan::Step& s) { return s.kind == StepKind::Random || runtime::may_draw(s); });
}

}  // namespace

std::shared_ptr<void> keep(nb::object object) {
  return {object.release().ptr(), [](void* p) {
            const Locked lock;
            Py_DECREF(static_cast<PyObject*>(p));
          }};
}

nb::tuple layout(const plan::Buffer& b) {
  return nb::make_tuple(std::string(name_of(b.dtype)), shape_tuple(b.shape), shape_tuple(b.strides));
}

json json_of(const runtime::StepTime& time) {
  json parts = json::array();
  for (const runtime::Part& part : time.parts) parts.push_back({part.thread, part.start, part.seconds});
  json made = {{"start", time.start}, {"seconds", time.seconds}, {"thread", time.thread}, {"parts", std::move(parts)}};
  if (time.over > 0) made["over"] = time.over;
  return made;
}

std::unique_ptr<CoreExecutable> executable_of(plan::Plan plan, const std::string& device, json compile_record) {
  auto made = std::make_unique<CoreExecutable>();
  made->compile_record = std::move(compile_record);
  std::set<int> read;
  for (const plan::Step& s : plan.steps)
    for (int b : s.reads)
      if (plan.buffers[b].space == MemorySpace::Input && plan.buffers[b].bytes > 0) read.insert(b);
  made->read_inputs.assign(read.begin(), read.end());
  made->loaded = runtime::device(device)->load(std::move(plan));
  return made;
}

void rename(std::vector<std::string>& origins, const std::map<std::string, std::string>& to) {
  for (std::string& origin : origins) {
    size_t line = origin.size();
    if (!to.contains(origin)) line = std::min(origin.rfind(" ("), line);  // "model.py:41 (aten.addmm)"
    if (auto it = to.find(origin.substr(0, line)); it != to.end()) origin = it->second + origin.substr(line);
  }
}

void bind_executable(nb::module_& m) {
  m.def("hash_memory", &hash_memory, nb::arg("pointer"), nb::arg("bytes"), "A hash of the bytes of some memory.");
  nb::class_<Run>(m, "Run", "A run of a plan that goes on where it is asked to.")
      .def("until", &Run::until, nb::arg("step"), "Runs the steps before this one that have not run.");
  nb::class_<CoreExecutable>(m, "Executable", "A plan, ready to run.")
      .def("run", &run, nb::arg("inputs"), nb::arg("outputs"), nb::arg("saved") = 0, nb::arg("generator") = nb::none(),
           nb::arg("extern_call") = nb::none(), nb::arg("temp") = 0, nb::arg("stream") = 0,
           nb::arg("on_step") = nb::none(), "`on_step(number)` is called before each step, where that is known.")
      .def("start", &start, nb::arg("inputs"), nb::arg("outputs"), nb::arg("saved") = 0,
           nb::arg("extern_call") = nb::none(), "A run that is asked for in parts; for a plan that `may_draw` nothing.")
      .def_prop_ro("output_steps", &output_steps,
                   "Of each output, the number of steps after which no other touches it.")
      .def_prop_ro("may_draw", &draws, "Whether a step of it may draw random numbers.")
      .def_prop_ro("output_info", &output_info,
                   "Per output: None, or (dtype, shape, strides, alias); alias >= 0: that very input.")
      .def_prop_ro("input_info", &input_info, "Per input: (dtype, shape, strides), or None where it is never read.")
      .def_prop_ro("given_away", &given_away, "Pairs of an input and an output that may be given its memory.")
      .def_prop_ro("updated_inputs", &updated_inputs, "Inputs that a run overwrites.")
      .def_prop_ro("extern_info", &extern_info)
      .def_prop_ro("saved_bytes", [](const CoreExecutable& e) { return e.plan().saved_bytes; })
      .def_prop_ro("temp_bytes", [](const CoreExecutable& e) { return e.plan().temp_bytes; })
      .def_prop_ro(
          "scratch_bytes", [](const CoreExecutable& e) { return plan::scratch_bytes(e.plan()); },
          "Of each thread that runs it.")
      .def_prop_ro("name", [](const CoreExecutable& e) { return e.plan().name; })
      .def_prop_rw(
          "profile", [](const CoreExecutable& e) { return e.loaded->profile; },
          [](CoreExecutable& e, bool on) { e.loaded->profile = on; })
      .def("report", &report)
      .def(
          "layout", [](const CoreExecutable& e) { return layout_text(e.plan()); },
          "What lies where in its arena and in the handle's, in which steps, as JSON.")
      .def_prop_ro(
          "compile_record", [](const CoreExecutable& e) { return e.compile_record.dump(); },
          "How it was made, as JSON.")
      .def("text", [](const CoreExecutable& e) { return plan::print(e.plan()); })
      .def("save", [](const CoreExecutable& e) {
        const std::string bytes = plan::save(e.plan());
        return nb::bytes(bytes.data(), bytes.size());
      });
  m.def(
      "load_plan",
      [](const nb::bytes& bytes, const std::map<std::string, std::string>& origins, const std::string& compile_record,
         const std::string& device) {
        plan::Plan plan = plan::load({static_cast<const char*>(bytes.data()), bytes.size()});
        for (plan::Step& s : plan.steps) rename(s.origins, origins);
        for (Remark& r : plan.remarks) rename(r.origins, origins);
        return executable_of(std::move(plan), device, json::parse(compile_record));
      },
      nb::arg("bytes"), nb::arg("origins") = std::map<std::string, std::string>(), nb::arg("compile_record") = "null",
      nb::arg("device") = "cpu", "A plan that `save` wrote. origins: lines of the model that moved since, old to new.");
}

}  // namespace trainc::bindings
