"""XLA's own modules as StableHLO, and modules that call a plan."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from trainc.base.errors import InternalError
from trainc.xla.compat import context, hlo_to_stablehlo
from trainc.xla.plans import TARGET

_VERSION = "1.3.0"  # of StableHLO: the oldest with calls that have a dictionary, so that an older TensorFlow reads them, too

_CALL = """
func.func public @main({arguments}) -> ({results}) {{
  %result:{count} = "stablehlo.custom_call"({names}) <{{
    api_version = 4 : i32, backend_config = {{plan = "{plan}"}}, call_target_name = "{target}", has_side_effect = false,
    operand_layouts = [{operand_layouts}], result_layouts = [{result_layouts}], output_operand_aliases = [{aliases}]
  }}> : ({types}) -> ({results})
  return {given} : {results}
}}
"""
_ALIAS = (
    "#stablehlo.output_operand_alias<output_tuple_indices = [{result}], operand_index = {operand}, operand_tuple_indices = []>"
)


def of_hlo(hlo: bytes) -> ir.Module:
    """Of a serialized HloModuleProto. InternalError where it has what StableHLO has not."""
    try:
        with context():
            return ir.Module.parse(hlo_to_stablehlo(hlo))
    except Exception as error:  # of jaxlib, in several kinds
        raise InternalError(f"XLA's module is not StableHLO: {str(error).splitlines()[0]}") from error


def types_of_main(module: ir.Module) -> tuple[list[str], list[str]]:
    """Those of its arguments and of its results, as MLIR writes them: "tensor<2x3xf32>"."""
    main = next(f for f in module.body if f.operation.name == "func.func" and f.name.value == "main")
    return [str(t) for t in main.type.inputs], [str(t) for t in main.type.results]


def overwritten(module: ir.Module) -> dict[int, int]:
    """Results of "main" that XLA may write where an argument lies, with that argument."""
    attributes = module.operation.attributes
    if "mhlo.input_output_alias" not in attributes:
        return {}
    found = {}
    for pair in attributes["mhlo.input_output_alias"]:
        index = list(pair["output_index"])
        found[index[0] if index else 0] = pair["alias"]["parameter_number"].value
    return found


def calling(plan: str, arguments: Sequence[str], results: Sequence[str], aliases: Sequence[tuple[int, int]]) -> bytes:
    """A portable module whose "main" is a call of a published plan, for an XLA of any version that has such calls. `arguments`,
    `results`: their types; `aliases`: arguments with the results that lie where they do."""
    if not results:
        raise InternalError("a plan without results cannot be called by XLA")
    names = [f"%arg{i}" for i in range(len(arguments))]
    text = _CALL.format(
        plan=plan,
        target=TARGET,
        count=len(results),
        names=", ".join(names),
        arguments=", ".join(f"{n}: {t}" for n, t in zip(names, arguments, strict=True)),
        types=", ".join(arguments),
        results=", ".join(results),
        given=", ".join(f"%result#{i}" for i in range(len(results))),
        operand_layouts=", ".join(map(_row_major, arguments)),
        result_layouts=", ".join(map(_row_major, results)),
        aliases=", ".join(_ALIAS.format(operand=i, result=j) for i, j in aliases),
    )
    with context():
        text = str(ir.Module.parse(text))
    return stablehlo.serialize_portable_artifact_str(text, _VERSION)


def _row_major(type_: str) -> str:
    rank = ir.RankedTensorType(ir.Type.parse(type_, context())).rank
    numbers = ", ".join(str(i) for i in reversed(range(rank)))
    return f"dense<[{numbers}]> : tensor<{rank}xindex>" if rank else "dense<> : tensor<0xindex>"


__all__ = ["calling", "of_hlo", "overwritten", "types_of_main"]
