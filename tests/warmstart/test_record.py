from hydra.utils import instantiate

from clawexp.commands.compose import composed
from clawexp.warmstart.record import record


async def test_the_built_in_harness_follows_the_script_and_leaves_its_sketch() -> None:
    config = composed(["harness=builtin"])
    harness = instantiate(config.harness.builtin, _convert_="all")
    sketch = await record("builtin", harness, instantiate(config.runtime, _convert_="all"))
    assert sketch.system == config.harness.builtin.system
    assert sketch.user == "{instruction}"
    assert [tool["function"]["name"] for tool in sketch.tools] == list(config.harness.builtin.tools)
