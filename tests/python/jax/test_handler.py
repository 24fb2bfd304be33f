"""src/runtime/xla/ffi.h says what the header of jaxlib says."""

import re
import shutil
import subprocess
from pathlib import Path

import jax
import pytest

SOURCE = Path(__file__).resolve().parents[3] / "src"

# ours -> (theirs, {our field: their field}) by layout; numbers by value
STRUCTURES = {
    "FfiExtension": ("XLA_FFI_Extension_Base", {"struct_size": "struct_size", "type": "type", "next": "next"}),
    "FfiVersion": ("XLA_FFI_Api_Version", {"extensions": "extension_start", "major": "major_version", "minor": "minor_version"}),
    "FfiMetadata": ("XLA_FFI_Metadata", {"struct_size": "struct_size", "version": "api_version", "traits": "traits"}),
    "FfiMetadataExtension": ("XLA_FFI_Metadata_Extension", {"base": "extension_base", "metadata": "metadata"}),
    "FfiErrorCreate": ("XLA_FFI_Error_Create_Args", {"extensions": "extension_start", "message": "message", "code": "errc"}),
    "FfiApi": (
        "XLA_FFI_Api",
        {"version": "api_version", "internal": "internal_api", "create_error": "XLA_FFI_Error_Create"},
    ),
    "FfiBuffer": ("XLA_FFI_Buffer", {"dtype": "dtype", "data": "data", "rank": "rank", "dims": "dims"}),
    "FfiBuffers": ("XLA_FFI_Args", {"size": "size", "types": "types", "buffers": "args"}),
    "FfiBytes": ("XLA_FFI_ByteSpan", {"data": "ptr", "size": "len"}),
    "FfiAttributes": ("XLA_FFI_Attrs", {"size": "size", "types": "types", "names": "names", "values": "attrs"}),
    "FfiCall": (
        "XLA_FFI_CallFrame",
        {
            "extensions": "extension_start", "api": "api", "context": "ctx", "stage": "stage", "arguments": "args",
            "results": "rets", "attributes": "attrs",
        },
    ),
}  # fmt: skip
SAME_SIZE = ("FfiExtension", "FfiVersion", "FfiErrorCreate", "FfiBuffer", "FfiBuffers", "FfiBytes", "FfiAttributes")
NUMBERS = {
    "kFfiMetadata": "XLA_FFI_Extension_Metadata", "kFfiInternal": "XLA_FFI_Error_Code_INTERNAL",
    "kFfiBuffer": "XLA_FFI_ArgType_BUFFER", "kFfiString": "XLA_FFI_AttrType_STRING",
    "kFfiExecute": "XLA_FFI_ExecutionStage_EXECUTE", "kFfiMajor": "XLA_FFI_API_MAJOR", "kFfiNewestMinor": "XLA_FFI_API_MINOR",
}  # fmt: skip


def checks() -> list[str]:
    found = []
    for ours, (theirs, fields) in STRUCTURES.items():
        for mine, its in fields.items():
            found.append(f"offsetof({ours}, {mine}) == offsetof({theirs}, {its})")
            found.append(f"sizeof({ours}::{mine}) <= sizeof({theirs}::{its})")
    found += [f"sizeof({ours}) == sizeof({STRUCTURES[ours][0]})" for ours in SAME_SIZE]
    found += [f"int({ours}) == int({theirs})" for ours, theirs in NUMBERS.items()]
    handler = (SOURCE / "runtime/xla/handler.cpp").read_text()
    sizes = dict(re.findall(r"\{(\d+), (\d+)\}", handler[handler.index("kSizes") :].partition(";")[0]))
    names = {"PRED": 1, "S8": 1, "S16": 2, "S32": 4, "S64": 8, "U8": 1, "U16": 2, "U32": 4, "U64": 8, "F16": 2, "F32": 4}
    names |= {"F64": 8, "BF16": 2, "C64": 8, "C128": 16}
    assert len(sizes) == len(names)
    found += [f"int(XLA_FFI_DataType_{name}) == {n}" for name, n in of_dtypes(sizes, names)]
    return found


def of_dtypes(sizes: dict[str, str], names: dict[str, int]) -> list[tuple[str, str]]:
    """Each dtype with the number that the handler has for its size, in the header's order of the numbers."""
    order = ("PRED", "S8", "S16", "S32", "S64", "U8", "U16", "U32", "U64", "F16", "F32", "F64", "BF16", "C64", "C128")
    pairs = list(zip(order, sizes, strict=True))
    assert all(int(sizes[number]) == names[name] for name, number in pairs)
    return pairs


def test_layouts_are_those_of_jaxlib(tmp_path):
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    lines = [f'static_assert({check}, "{check}");' for check in checks()]
    file = tmp_path / "layouts.cpp"
    headers = ["<cstddef>", '"xla/ffi/api/c_api.h"', '"runtime/xla/ffi.h"']
    lines = [*(f"#include {header}" for header in headers), "using namespace trainc::runtime::xla;", *lines]
    file.write_text("\n".join(lines) + "\n")
    command = [compiler, "-std=c++20", "-fsyntax-only", "-I", jax.ffi.include_dir(), "-I", str(SOURCE), str(file)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[:3000]
