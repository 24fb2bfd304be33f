// What python/trainc/torch/guards/watch.py needs of CPython: each piece of code that runs for the first time while a
// program is traced, and the C functions that it calls; which attributes it reads of a trace's tensors; and whether
// places that were read hold the very objects that they held.
#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "bindings/bindings.h"
#include "support/error.h"

namespace trainc::bindings {
namespace {

// ---- garbage --------------------------------------------------------------------------------------------------------

/// For Python's garbage collector: what a T has `held` may reach it again.
template <class T> int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (nb::inst_ready(self))
    for (const nb::object* held : nb::inst_ptr<T>(self)->held()) Py_VISIT(held->ptr());
  return 0;
}
template <class T> int clear(PyObject* self) {
  for (nb::object* held : nb::inst_ptr<T>(self)->held()) held->reset();
  return 0;
}

// ---- calls ----------------------------------------------------------------------------------------------------------

/// A profile function in C: Python's own (sys.setprofile) would take a second of a trace, which makes two million
/// calls.
class CallWatch {
 public:
  CallWatch(nb::object on_code, nb::object on_c_call)
      : on_code_(std::move(on_code)), on_c_call_(std::move(on_c_call)) {}
  ~CallWatch() {
    for (auto& [code, user] : codes_) Py_DECREF(code);
  }

  void start() {
    PyThreadState* thread = PyThreadState_Get();
    before_ = thread->c_profilefunc;
    before_argument_ = nb::borrow(thread->c_profileobj);
    PyEval_SetProfile(&event, nb::find(this).ptr());
  }

  void stop() {
    PyEval_SetProfile(before_, before_argument_.ptr());
    before_argument_.reset();
  }

 private:
  static int event(PyObject* self, PyFrameObject* frame, int what, PyObject* argument) {
    if (what != PyTrace_CALL && what != PyTrace_C_CALL) return 0;
    auto* const watch = nb::inst_ptr<CallWatch>(self);
    PyCodeObject* const code = PyFrame_GetCode(frame);
    const int status = what == PyTrace_CALL ? watch->called(frame, code) : watch->called_c(frame, code, argument);
    Py_DECREF(code);
    return status;
  }

  /// Asks `on_code` at the first call of each code whether it is the user's; None: ask again at the next call.
  int called(PyFrameObject* frame, PyCodeObject* code) {
    if (codes_.contains(code)) return 0;
    Py_INCREF(code);  // or another code could come to lie at its address
    codes_.emplace(code, false);
    PyObject* const user = PyObject_CallOneArg(on_code_.ptr(), reinterpret_cast<PyObject*>(frame));
    if (user == nullptr) return -1;
    if (user == Py_None) {
      codes_.erase(code);
      Py_DECREF(code);
    } else {
      codes_[code] = user == Py_True;
    }
    Py_DECREF(user);
    return 0;
  }

  /// Tells `on_c_call` the first call of each C function by each piece of the user's code, and all calls that read a
  /// tensor's memory.
  int called_c(PyFrameObject* frame, PyCodeObject* code, PyObject* function) {
    const auto found = codes_.find(code);
    if (found == codes_.end() || !found->second || !PyCFunction_Check(function)) return 0;
    const PyMethodDef* const method = reinterpret_cast<PyCFunctionObject*>(function)->m_ml;
    constexpr std::array<const char*, 4> kReads = {"tolist", "numpy", "item", "__array__"};
    const bool reads =
        std::ranges::any_of(kReads, [&](const char* name) { return std::strcmp(name, method->ml_name) == 0; });
    if (!calls_[code].insert(method).second && !reads) return 0;
    PyObject* const result =
        PyObject_CallFunctionObjArgs(on_c_call_.ptr(), reinterpret_cast<PyObject*>(frame), function, nullptr);
    if (result == nullptr) {
      calls_[code].erase(method);  // the program may catch it, and call again
      return -1;
    }
    Py_DECREF(result);
    return 0;
  }

  nb::object on_code_, on_c_call_;
  std::unordered_map<PyCodeObject*, bool> codes_;  // whether each is the user's
  std::unordered_map<PyCodeObject*, std::unordered_set<const PyMethodDef*>> calls_;
  Py_tracefunc before_ = nullptr;
  nb::object before_argument_;
};

// ---- attributes -----------------------------------------------------------------------------------------------------

/// A class's `__getattribute__` that asks Python for a few names alone; with no names, a `__getattr__`. A trace reads a
/// million attributes of its tensors, nearly all of them from PyTorch's own code.
class AttributeWatch {
 public:
  AttributeWatch(nb::object classes, nb::object names, nb::object on_name, nb::object is_users)
      : classes_(std::move(classes)),
        names_(std::move(names)),
        on_name_(std::move(on_name)),
        is_users_(std::move(is_users)) {
    if (!classes_.is_none() && !PyDict_Check(classes_.ptr()))
      throw UserError("AttributeWatch: classes must be a dictionary or None");
    if (!names_.is_none() && !PyAnySet_Check(names_.ptr()))
      throw UserError("AttributeWatch: names must be a set or None");
  }
  ~AttributeWatch() {
    for (auto& [code, user] : codes_) Py_DECREF(code);
    Py_DECREF(class_);
  }

  static PyObject* call(PyObject* self, PyObject* arguments, PyObject*) {
    PyObject *object, *name;
    if (!PyArg_UnpackTuple(arguments, "AttributeWatch", 2, 2, &object, &name)) return nullptr;
    return nb::inst_ptr<AttributeWatch>(self)->attribute(object, name);
  }

  /// Found in a class, it is a method of the instance.
  static PyObject* bind(PyObject* self, PyObject* object, PyObject*) {
    return object == nullptr || object == Py_None ? Py_NewRef(self) : PyMethod_New(self, object);
  }

  std::array<nb::object*, 4> held() { return {&classes_, &names_, &on_name_, &is_users_}; }

 private:
  PyObject* attribute(PyObject* object, PyObject* name) {
    const bool missing = names_.is_none();
    if (!classes_.is_none() && PyUnicode_Compare(name, class_) == 0)
      if (PyObject* const answer = class_of(object); answer != nullptr || PyErr_Occurred()) return answer;
    int ask = missing ? 1 : PySet_Contains(names_.ptr(), name);
    if (ask == 1) ask = asked_by_user();
    if (ask < 0) return nullptr;
    if (ask) return PyObject_CallFunctionObjArgs(on_name_.ptr(), object, name, nullptr);
    if (!missing) return PyObject_GenericGetAttr(object, name);
    return PyErr_Format(PyExc_AttributeError, "'Tensor' object has no attribute '%U'", name);
  }

  /// The class that an object of one of `classes_` shows; null, without an error, for any other object.
  PyObject* class_of(PyObject* object) {
    PyObject* const shown = PyDict_GetItemWithError(classes_.ptr(), reinterpret_cast<PyObject*>(Py_TYPE(object)));
    if (shown == nullptr) return nullptr;
    PyObject *mark, *plain, *marked;
    if (!PyArg_UnpackTuple(shown, "AttributeWatch", 3, 3, &mark, &plain, &marked)) return nullptr;
    PyObject* const own = PyObject_GenericGetDict(object, nullptr);
    if (own == nullptr) return nullptr;
    PyObject* const found = PyDict_GetItemWithError(own, mark);
    const int is_marked = found == nullptr ? 0 : PyObject_IsTrue(found);
    Py_DECREF(own);
    if (is_marked < 0 || PyErr_Occurred()) return nullptr;
    return Py_NewRef(is_marked ? marked : plain);
  }

  /// Asks `is_users` once of each code; -1 where it raised.
  int asked_by_user() {
    PyThreadState* const thread = PyThreadState_Get();
    PyFrameObject* const frame = PyThreadState_GetFrame(thread);
    if (frame == nullptr) return 0;
    PyCodeObject* const code = PyFrame_GetCode(frame);
    int user;
    if (const auto found = codes_.find(code); found != codes_.end()) {
      user = found->second;
      Py_DECREF(code);
    } else {
      PyObject* const answer = PyObject_CallOneArg(is_users_.ptr(), reinterpret_cast<PyObject*>(frame));
      user = answer == nullptr ? -1 : answer == Py_True;
      Py_XDECREF(answer);
      if (user >= 0) codes_.emplace(code, user);  // and keeps it: another code could come to lie at its address
      else Py_DECREF(code);
    }
    Py_DECREF(frame);
    return user;
  }

  nb::object classes_, names_, on_name_, is_users_;
  PyObject* const class_ = PyUnicode_InternFromString("__class__");
  std::unordered_map<PyCodeObject*, bool> codes_;  // whether each is the user's
};

// ---- places ---------------------------------------------------------------------------------------------------------

/// CPython's version of a class, another one after each change of the class or of one of its bases; 0 where it has
/// none.
unsigned long type_version(PyObject* type) {
  const auto* t = reinterpret_cast<PyTypeObject*>(type);
#ifdef Py_TPFLAGS_VALID_VERSION_TAG
  if (!(t->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG)) return 0;
#endif
  return t->tp_version_tag;
}

/// `type_version`, after a look-up: CPython gives a class its version when it first remembers where an attribute was
/// found.
unsigned long make_type_version(nb::handle type) {
  if (!PyType_Check(type.ptr())) throw UserError("type_version: not a class");
  PyObject* const found = PyObject_GetAttrString(type.ptr(), "__trainc_version__");
  if (found == nullptr) PyErr_Clear();
  Py_XDECREF(found);
  return type_version(type.ptr());
}

bool same_bytes(PyObject* object, PyObject* expected) {
  Py_buffer view;
  if (PyObject_GetBuffer(object, &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    return false;
  }
  const bool same = PyBytes_Check(expected) && view.len == PyBytes_GET_SIZE(expected) &&
                    std::memcmp(view.buf, PyBytes_AS_STRING(expected), view.len) == 0;
  PyBuffer_Release(&view);
  return same;
}

/// What lies at a place, without calling Python: (dictionary, key) or (object, name of a slot). A borrowed pointer;
/// `missing` for nothing.
PyObject* at_place(PyObject* place, PyObject* missing) {
  PyObject *const owner = PyTuple_GET_ITEM(place, 0), *const key = PyTuple_GET_ITEM(place, 1);
  PyObject* value = nullptr;
  if (PyDict_Check(owner)) {
    value = PyDict_GetItemWithError(owner, key);
  } else if ((value = PyObject_GenericGetAttr(owner, key)) != nullptr) {
    Py_DECREF(value);  // the slot holds it
  }
  if (value == nullptr) PyErr_Clear();
  return value == nullptr ? missing : value;
}

PyObject* or_none(PyObject* value) { return value == nullptr ? Py_None : value; }

/// What a place may hold that is no object: any value, or nothing.
struct Markers { PyObject *ignored, *missing; };

/// Whether a place holds what stands at `at`, which is moved behind it. By identity, without calling Python (bind_watch
/// says what is there).
bool same_place(PyObject* place, PyObject* const*& at, PyObject* const* end, const Markers& marks) {
  if (PyDict_Check(place)) {
    const Py_ssize_t size = PyDict_GET_SIZE(place);  // most are tables of hooks, and empty
    if (end - at < 2 * size + 1) return false;
    PyObject *key, *value;
    if (size != 0)
      for (Py_ssize_t next = 0; PyDict_Next(place, &next, &key, &value); at += 2)
        if (at[0] != key || (at[1] != value && at[1] != marks.ignored)) return false;
  } else if (PyList_Check(place)) {
    const Py_ssize_t size = PyList_GET_SIZE(place);
    if (end - at < size + 1) return false;
    PyObject* const* const items = PySequence_Fast_ITEMS(place);
    if (!std::equal(items, items + size, at)) return false;
    at += size;
  } else if (PyAnySet_Check(place) || std::strcmp(Py_TYPE(place)->tp_name, "collections.deque") == 0) {
    const Py_ssize_t size = PyObject_Size(place);
    if (end - at < size + 1) return false;
    if (size != 0)
      for (nb::handle item : nb::borrow(place))
        if (*at++ != item.ptr()) return false;
  } else if (PyTuple_Check(place) && PyTuple_GET_SIZE(place) == 1) {
    PyObject* const table = PyTuple_GET_ITEM(place, 0);
    if (end - at < 2 || !PyDict_Check(table) || !PyLong_Check(*at) || PyLong_AsSsize_t(*at++) != PyDict_GET_SIZE(table))
      return false;
  } else if (PyTuple_Check(place)) {
    if (PyTuple_GET_SIZE(place) != 2 || end - at < 2 || *at++ != at_place(place, marks.missing)) return false;
  } else if (PyType_Check(place)) {
    if (end - at < 2 || !PyLong_Check(*at) || PyLong_AsUnsignedLong(*at++) != type_version(place) ||
        type_version(place) == 0)
      return false;
  } else if (PyFunction_Check(place)) {
    if (end - at < 4 || at[0] != PyFunction_GetCode(place) || at[1] != or_none(PyFunction_GetDefaults(place)) ||
        at[2] != or_none(PyFunction_GetKwDefaults(place)))
      return false;
    at += 3;
  } else if (PyCell_Check(place)) {
    PyObject* const now = PyCell_GET(place);
    if (end - at < 2 || *at++ != (now == nullptr ? marks.missing : now)) return false;
  } else if (PyContextVar_CheckExact(place)) {
    PyObject* now = nullptr;
    if (end - at < 2 || PyContextVar_Get(place, marks.missing, &now) != 0 || *at++ != now) {
      PyErr_Clear();
      Py_XDECREF(now);
      return false;
    }
    Py_DECREF(now);  // the context holds it
  } else if (end - at < 2 || !same_bytes(place, *at++)) {
    return false;
  }
  return *at++ == place;
}

/// The dictionary that alone decides what a place holds; null where there is none.
PyObject* table_of(PyObject* place) {
  if (PyTuple_Check(place)) place = PyTuple_GET_ITEM(place, 0);
  return PyDict_Check(place) ? place : nullptr;
}

/// CPython's version of a dictionary (PEP 509), another one after each change, of no other dictionary; 0 where CPython
/// (3.12 and later) has none.
uint64_t dict_version([[maybe_unused]] PyObject* table) {
#if PY_VERSION_HEX < 0x030C0000
  return reinterpret_cast<PyDictObject*>(table)->ma_version_tag;
#else
  return 0;
#endif
}

/// `same_contents` of the same places again and again: a dictionary that has the version it had when it was last found
/// right is not looked into.
class ContentsGuard {
 public:
  ContentsGuard(nb::object ignored, nb::object missing, nb::list places, nb::list expected, nb::list objects,
                nb::list classes)
      : ignored_(std::move(ignored)),
        missing_(std::move(missing)),
        places_(std::move(places)),
        expected_(std::move(expected)),
        objects_(std::move(objects)),
        classes_(std::move(classes)),
        versions_(nb::len(places_), 0),
        starts_(nb::len(places_), -1) {}

  bool holds() {
    PyObject* const* const first = PySequence_Fast_ITEMS(expected_.ptr());
    PyObject* const* const end = first + PyList_GET_SIZE(expected_.ptr());
    PyObject* const* const places = PySequence_Fast_ITEMS(places_.ptr());
    const Py_ssize_t count = PyList_GET_SIZE(places_.ptr());
    constexpr Py_ssize_t kAhead = 8;  // a step of training leaves none of them in the caches: ask for several at a time
    PyObject* const* at = first;
    for (Py_ssize_t i = 0; i < count; ++i) {
      if (i + kAhead < count) __builtin_prefetch(places[i + kAhead]);
      PyObject* const table = table_of(places[i]);
      const uint64_t version = table == nullptr ? 0 : dict_version(table);
      if (version != 0 && version == versions_[i]) {
        at = i + 1 < count && starts_[i + 1] >= 0 ? first + starts_[i + 1] : end;
        continue;
      }
      starts_[i] = at - first;
      if (!same_place(places[i], at, end, {ignored_.ptr(), missing_.ptr()})) return false;
      if (i + 1 < count) starts_[i + 1] = at - first;
      versions_[i] = version;
    }
    if (at != end) return false;
    PyObject *const *const objects = PySequence_Fast_ITEMS(objects_.ptr()), *const *const classes =
                                                                                PySequence_Fast_ITEMS(classes_.ptr());
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(objects_.ptr()); ++i)
      if (reinterpret_cast<PyObject*>(Py_TYPE(objects[i])) != classes[i]) return false;
    return true;
  }

  std::array<nb::object*, 4> held() { return {&places_, &expected_, &objects_, &classes_}; }

 private:
  nb::object ignored_, missing_;
  nb::list places_, expected_, objects_, classes_;
  std::vector<uint64_t> versions_;  // of each place's dictionary when it was last found right; 0: none
  std::vector<Py_ssize_t> starts_;  // of each place, where in `expected_` what it held stands; -1: not known yet
};

}  // namespace

bool same_contents(nb::handle ignored, nb::handle missing, const nb::list& places, const nb::list& expected) {
  PyObject* const* at = PySequence_Fast_ITEMS(expected.ptr());
  PyObject* const* const end = at + PyList_GET_SIZE(expected.ptr());
  for (nb::handle place : places)
    if (!same_place(place.ptr(), at, end, {ignored.ptr(), missing.ptr()})) return false;
  return at == end;
}

/// `same_contents`: whether places hold the very objects of `expected`, in order, each place followed by itself: by
/// identity, without calling Python. What a place holds:
///   dict: keys and values; a value that is `ignored` may be any
///   (dict,): how many it holds
///   (dict, key), (object, slot): the value, or `missing`
///   list, set, deque: items
///   class: its version, a number
///   function: code, defaults, keyword defaults
///   cell, context variable: its contents, or `missing`
///   what gives a buffer: its bytes
/// (PyDict_Next reads the real storage of subclasses too.)
void bind_watch(nb::module_& m) {
  static PyType_Slot attribute_slots[] = {{Py_tp_call, reinterpret_cast<void*>(&AttributeWatch::call)},
                                          {Py_tp_descr_get, reinterpret_cast<void*>(&AttributeWatch::bind)},
                                          {Py_tp_traverse, reinterpret_cast<void*>(&traverse<AttributeWatch>)},
                                          {Py_tp_clear, reinterpret_cast<void*>(&clear<AttributeWatch>)},
                                          {0, nullptr}};
  nb::class_<AttributeWatch>(m, "AttributeWatch", nb::type_slots(attribute_slots),
                             "A class's __getattribute__: on_name(object, name) for those of `names` where the user's "
                             "code asks (is_users(frame), once of each code); else object's own. With names=None its "
                             "__getattr__: of any name, or an AttributeError. `classes` are {class: (mark, plain, "
                             "marked)}: an object of just that class shows everyone `marked` as its __class__ where "
                             "its own dictionary has a true `mark`, else `plain`.")
      .def(nb::init<nb::object, nb::object, nb::object, nb::object>(), nb::arg("classes").none(),
           nb::arg("names").none(), nb::arg("on_name"), nb::arg("is_users"));
  m.def("same_contents", &same_contents, nb::arg("ignored"), nb::arg("missing"), nb::arg("places"), nb::arg("expected"),
        "Whether places that were read hold what they held, by identity: places.same_contents.");
  static PyType_Slot slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&traverse<ContentsGuard>)},
                                {Py_tp_clear, reinterpret_cast<void*>(&clear<ContentsGuard>)},
                                {0, nullptr}};
  nb::class_<ContentsGuard>(
      m, "ContentsGuard", nb::type_slots(slots),
      "same_contents of the same places again and again, and whether objects are of the same classes as then.")
      .def(nb::init<nb::object, nb::object, nb::list, nb::list, nb::list, nb::list>(), nb::arg("ignored"),
           nb::arg("missing"), nb::arg("places"), nb::arg("expected"), nb::arg("objects"), nb::arg("classes"))
      .def("holds", &ContentsGuard::holds);
  m.def("type_version", &make_type_version, nb::arg("type"),
        "A number that changes with each change of a class or its bases; 0 where CPython has none.");
  nb::class_<CallWatch>(m, "CallWatch",
                        "Tells on_code(frame) of each code at its first call (True: it is the user's), and "
                        "on_c_call(frame, function) of C functions that the user's code calls.")
      .def(nb::init<nb::object, nb::object>(), nb::arg("on_code"), nb::arg("on_c_call"))
      .def("start", &CallWatch::start)
      .def("stop", &CallWatch::stop);
}

}  // namespace trainc::bindings
