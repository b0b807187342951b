"""YAML as plain data: limits of size and nesting, duplicate keys, errors that name the line, and decimal numbers."""

from __future__ import annotations

import re
from typing import Any

import yaml

from agilerl.errors import ConfigError

LARGEST_YAML = 1_000_000  # characters
MAX_YAML_NODES = 20_000


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Numbers as in YAML 1.2: 010 is 10 and not 8, 08 is 8, and 1:30 is a text and not 90."""


def _number(loader: _Loader, node: yaml.ScalarNode) -> Any:
    text = str(loader.construct_scalar(node))
    if ":" in text:
        return text
    if node.tag.endswith(":float"):
        return loader.construct_yaml_float(node)
    return int(text) if re.fullmatch(r"[-+]?[\d_]+", text) else loader.construct_yaml_int(node)


_Loader.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?0[0-9]+$"), list("-+0"))
_Loader.add_constructor("tag:yaml.org,2002:int", _number)
_Loader.add_constructor("tag:yaml.org,2002:float", _number)


def parse_yaml(text: str, source: str) -> Any:
    """Parse YAML to plain content; ConfigError names the line of an error.

    A duplicate key in one mapping is an error too: YAML would silently keep the last one. A text may have
    `LARGEST_YAML` characters, and `MAX_YAML_NODES` values with its aliases expanded.
    """
    if len(text) > LARGEST_YAML:
        raise ConfigError(f"{source}: has {len(text)} characters; expected at most {LARGEST_YAML}. fix: shorten it.")
    try:
        tree = yaml.compose(text, Loader=yaml.SafeLoader)
        if _count_nodes(tree, {}) > MAX_YAML_NODES:
            raise ConfigError(f"{source}: aliases repeat more than {MAX_YAML_NODES} values. fix: write the values out.")
        repeated = _repeated_key(tree)
        content = _Loader(text).get_single_data()
    except RecursionError:
        raise ConfigError(f"{source}: is nested too deeply. fix: a manifest has four levels.") from None
    except (ValueError, OverflowError) as error:
        if isinstance(error, ConfigError):
            raise
        reason = " ".join(str(error).split())
        raise ConfigError(f"{source}: holds a value that cannot be read ({reason}). fix: correct that value.") from None
    except yaml.YAMLError as error:
        marked_error = error if isinstance(error, yaml.MarkedYAMLError) else yaml.MarkedYAMLError()
        raise _yaml_error(source, marked_error.problem_mark, marked_error.problem or "cannot be read") from None
    if repeated is not None:
        raise _yaml_error(source, repeated.start_mark, f"the key {repeated.value!r} stands twice")
    return content


def _yaml_error(source: str, mark: Any, problem: str) -> ConfigError:
    where = f" line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return ConfigError(f"{source}:{where} is not valid YAML: {problem}. fix: correct that line.")


def _count_nodes(node: Any, counts: dict[int, int]) -> int:
    """Number of values below a node with every alias expanded; RecursionError for a node that contains itself."""
    if node is None or isinstance(node, yaml.ScalarNode):
        return 1
    if id(node) not in counts:
        counts[id(node)] = -1  # being counted
        pairs = isinstance(node, yaml.MappingNode)
        children = [part for pair in node.value for part in pair] if pairs else node.value
        counts[id(node)] = 1 + sum(_count_nodes(child, counts) for child in children)
    if counts[id(node)] < 0:
        raise RecursionError
    return counts[id(node)]


def _repeated_key(node: object) -> Any:
    """The first duplicate key node of a mapping, else None."""
    if isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    return key
                seen.add(key.value)
            repeated = _repeated_key(value)
            if repeated is not None:
                return repeated
    elif isinstance(node, yaml.SequenceNode):
        return next((repeated for child in node.value if (repeated := _repeated_key(child)) is not None), None)
    return None
