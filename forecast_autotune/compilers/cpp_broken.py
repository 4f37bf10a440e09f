"""Sources that compile under no variant, told by the first failures instead of by trying every variant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from ..core.config import Config
from ..core.outcome import Failure
from .cpp_recipe import SOURCE_KNOB, Recipe, included_headers

_LOG = re.compile(r" \(log: .*\)\Z", re.DOTALL)
_FOLDER = re.compile(r"[^\s'\"]*/(?=[^\s/])")
_CONDITION = re.compile(r"^\s*#\s*(?:el)?if\b((?:.*\\\n)*.*)", re.MULTILINE)
_DEFINED = re.compile(r"\bdefined\s*\(?\s*\w+\s*\)?")
_MACRO = re.compile(r"^\s*#\s*define\s+(\w+)((?:.*\\\n)*.*)", re.MULTILINE)
_OF_THE_TEXT = re.compile(  # in the words of GCC, Clang and nvcc; what a type lacks, templates may have chosen by a knob
    r"\berror: (?:expected |stray |missing |unterminated |unknown type name|use of undeclared|identifier .* is undefined"
    r"|.*(?:was not declared in this scope|has not been declared|does not name a type|No such file or directory))"
)
_BINDING = "main.cpp:"  # as torch names the file of cpp_sources


class BrokenSources:
    """The builds of one recipe, watched for a failure that every variant would meet.

    A failure is every variant's in two cases:

    * It is in the binding, which is compiled without the knobs.
    * Two variants fail with the same error. It must be a syntax error or an undeclared name, must not mention a knob or
      its value, and no `#if` of the sources may depend on a knob. Where there are several sources, the two variants must
      use different ones.

    Once a variant was built, no failure is. Nor is a failed assertion ever: such a variant rules itself out.
    """

    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._any_built = False
        self._failed: dict[str, Config] = {}  # by their error, the first of each

    def works(self) -> None:
        """Note that a variant is built: no failure from now on is every variant's."""
        self._any_built = True

    def breaks_all(self, config: Config, failure: Failure) -> bool:
        """Take in a failed build; whether no other variant need be tried."""
        if failure.stage == "load":
            self.works()
        if self._any_built or failure.stage != "compile" or failure.transient or failure.refused:
            return False
        error = _FOLDER.sub("", _LOG.sub("", failure.message))
        if error.startswith(_BINDING) and self._binding_is_shared(config):
            return True
        if not _OF_THE_TEXT.search(error):
            return False
        other = self._failed.setdefault(error, config)
        if other == config or (self._picks_a_source and config[SOURCE_KNOB] == other[SOURCE_KNOB]):
            return False
        return not self._names_a_knob(error, config, other) and not self._conditions_depend_on(config)

    @property
    def _picks_a_source(self) -> bool:
        recipe = self._recipe
        return any(isinstance(s, Mapping) for s in (recipe.cpp_sources, recipe.cuda_sources, recipe.kernel_sources))

    def _macros(self, config: Config) -> set[str]:
        """The knobs that the preprocessor sees."""
        beside = {SOURCE_KNOB} if self._picks_a_source else set()
        return {knob for knob in config.knobs if knob not in beside and self._recipe.roles.get(knob) != "flag"}

    def _binding_is_shared(self, config: Config) -> bool:
        """Whether `cpp_sources` are one text that is compiled apart from what the knobs change."""
        recipe = self._recipe
        if isinstance(recipe.cpp_sources, Mapping) or not (recipe.kernel_sources or recipe.cuda_sources):
            return False
        return not _mentions("\n".join(recipe.cpp_sources), self._macros(config))

    def _names_a_knob(self, error: str, *configs: Config) -> bool:
        texts = [v for c in configs for k, v in c.knobs.items() if isinstance(v, str) and k != SOURCE_KNOB]
        return any(word in error for text in texts for word in text.split()) or _mentions(
            error, self._macros(configs[0])
        )

    def _conditions_depend_on(self, config: Config) -> bool:
        """Whether an `#if` asks for the value of a knob, or of a macro that is made of one."""
        recipe = self._recipe
        text = "\n".join([recipe.sources_text, *included_headers(recipe.sources_text, recipe.include_folders)])
        touched, count = self._macros(config), -1
        while count < len(touched):  # until nothing more is made of them
            count = len(touched)
            touched |= {name for name, body in _MACRO.findall(text) if _mentions(body, touched)}
        return any(_mentions(_DEFINED.sub("", condition), touched) for condition in _CONDITION.findall(text))


def _mentions(text: str, names: Iterable[str]) -> bool:
    return any(re.search(rf"\b{name}\b", text) for name in names)
