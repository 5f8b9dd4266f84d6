"""Rollouts -> numbers with names: `room/name`, and for several harnesses `room/name/harness`."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, stdev

from clawexp.outcome import Outcome
from clawexp.records import Call, Rollout
from clawexp.rule import NOTED


def measure(rollouts: Sequence[Rollout], worth: Mapping[str, float]) -> dict[str, float]:
    """What a step's rollouts say of themselves. `worth` has the rollouts that are trained on."""
    values = {**_rewards(rollouts), **_outcomes(rollouts), **_calls(rollouts), **_stages(rollouts)}
    values["rollout/groups"] = float(len({rollout.group for rollout in rollouts}))
    values["rollout/valid"] = len(worth)
    values["rollout/groups_with_variance"] = _varied(rollouts, worth)
    return values | _by_harness(rollouts, _rewards)


def measure_evaluation(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Mean score and Pass@1 on held-out tasks, with half the width of their 95 % intervals."""
    values = {
        "eval/rollouts": float(len(rollouts)),
        "eval/without_verdict": float(sum(r.reward is None for r in rollouts)),
    }
    return values | _scores(rollouts) | _by_harness(rollouts, _scores)


def _by_harness(
    rollouts: Sequence[Rollout], figures: Callable[[Sequence[Rollout]], dict[str, float]]
) -> dict[str, float]:
    """The same figures for each harness; nothing where there is but one."""
    harnesses = sorted({rollout.harness for rollout in rollouts})
    if len(harnesses) < 2:
        return {}
    return {
        f"{name}/{harness}": value
        for harness in harnesses
        for name, value in figures([rollout for rollout in rollouts if rollout.harness == harness]).items()
    }


def _scores(rollouts: Sequence[Rollout]) -> dict[str, float]:
    by_task: dict[str, list[float]] = defaultdict(list)
    for rollout in rollouts:
        if rollout.reward is not None:
            by_task[f"{rollout.harness}/{rollout.task_id}"].append(rollout.reward)
    scores = [fmean(rewards) for rewards in by_task.values()]
    solved = [fmean(reward >= 1.0 for reward in rewards) for rewards in by_task.values()]
    if not scores:
        return {}
    return {
        "eval/score": fmean(scores),
        "eval/score_ci95": half_width(scores),
        "eval/pass_at_1": fmean(solved),
        "eval/pass_at_1_ci95": half_width(solved),
    }


def half_width(samples: Sequence[float]) -> float:
    """Of the 95 % interval of a mean, by the normal approximation; tasks are the samples, not rollouts."""
    return 1.96 * stdev(samples) / math.sqrt(len(samples)) if len(samples) > 1 else math.nan


def _rewards(rollouts: Sequence[Rollout]) -> dict[str, float]:
    rewards = [rollout.reward for rollout in rollouts if rollout.reward is not None]
    if not rewards:
        return {}
    return {
        "reward/mean": fmean(rewards),
        "reward/solved": fmean(reward >= 1.0 for reward in rewards),
        "reward/std": stdev(rewards) if len(rewards) > 1 else 0.0,
    }


def _outcomes(rollouts: Sequence[Rollout]) -> dict[str, float]:
    counts = {outcome: sum(r.outcome is outcome for r in rollouts) for outcome in Outcome}
    retried = [outcome for rollout in rollouts for outcome in rollout.retried]
    values = {"rollout/count": float(len(rollouts)), "rollout/retried": float(len(retried))}
    values |= {f"outcome/{outcome}": float(count) for outcome, count in counts.items() if count}
    return values | {f"retried/{outcome}": float(retried.count(outcome)) for outcome in sorted(set(retried))}


def _calls(rollouts: Sequence[Rollout]) -> dict[str, float]:
    calls = [call for rollout in rollouts for call in rollout.calls]
    if not calls:
        return {"capture/calls": 0.0}
    edits = Counter(edit.rule for call in calls for edit in call.edits if edit.rule.startswith(NOTED))
    forks = Counter(call.cause for call in calls if call.cause not in ("root", "continue"))
    return {
        "capture/calls": float(len(calls)),
        "capture/calls_per_rollout": len(calls) / len(rollouts),
        "capture/forks_per_1k_calls": 1000 * forks.total() / len(calls),
        **{f"capture/forks_per_1k_calls/{cause}": 1000 * forks[cause] / len(calls) for cause in sorted(forks)},
        "capture/malformed_share": fmean(call.verdict == "malformed" for call in calls),
        "capture/cut_share": fmean(call.verdict == "cut" for call in calls),
        "capture/sampled_tokens": float(sum(len(call.sampled_ids) for call in calls)),
        "capture/prompt_tokens": float(sum(len(call.prompt_ids) for call in calls)),
        "engine/call_s": fmean(call.engine_s for call in calls),
        "engine/version_lag": float(_lag(calls, rollouts)),
        **_beside_the_model(rollouts),
        **{f"capture/{rule}": float(count) for rule, count in sorted(edits.items())},
    }


def blocked_hosts(rollouts: Sequence[Rollout]) -> Counter[str]:
    """How often programs in sandboxes tried to reach which host, as `host:port`, that they may not reach."""
    hosts: Counter[str] = Counter()
    for rollout in rollouts:
        hosts.update(rollout.facts.get("capture", {}).get("blocked", {}))
    return hosts


def _beside_the_model(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Requests to other hosts; nothing where there were none."""
    counts = Counter({"blocked": blocked_hosts(rollouts).total()})
    for rollout in rollouts:
        capture = rollout.facts.get("capture", {})
        counts.update({name: capture.get(name, 0) for name in ("forwarded", "cache_hits", "cache_misses", "raw_lost")})
    return {f"capture/{name}": float(count) for name, count in counts.items() if count}


def _lag(calls: Sequence[Call], rollouts: Sequence[Rollout]) -> int:
    """Versions between the oldest weights that a call was sampled from and those of its step."""
    newest = max(rollout.step for rollout in rollouts)
    return newest - min((span.version for call in calls for span in call.spans), default=newest)


def _stages(rollouts: Sequence[Rollout]) -> dict[str, float]:
    stages = sorted({stage for rollout in rollouts for stage in rollout.times})
    return {f"rollout/{stage}_s": fmean(r.times[stage] for r in rollouts if stage in r.times) for stage in stages}


def _varied(rollouts: Sequence[Rollout], worth: Mapping[str, float]) -> float:
    """Groups whose rewards differ, among the rollouts that are trained on."""
    rewards: dict[tuple[str, str], set[float | None]] = defaultdict(set)
    for rollout in rollouts:
        if rollout.id in worth:
            rewards[rollout.group].add(rollout.reward)
    return float(sum(len(found) > 1 for found in rewards.values()))
