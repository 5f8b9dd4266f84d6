"""The engine URL contract over a scheduler: routes, the key, and what a request must look like."""

import asyncio
import hmac
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from clawexp.array_text import text_of
from clawexp.engine.flaws import Fault, Faults, Flaws
from clawexp.engine.scheduler import Scheduler
from clawexp.engine.script import Script, Unplayable
from clawexp.errors import ConfigError
from clawexp.model.decoder import read_weights

log = logging.getLogger(__name__)

BODY_BYTES = 64 << 20
SAMPLING = {"temperature", "max_tokens", "stop_token_ids", "ignore_eos", "logprobs"}


class BadRequest(Exception):
    """A request that breaks the contract; the text says how."""

    def __init__(self, reason: str, code: str = "bad_request") -> None:
        super().__init__(reason)
        self.code = code


class Played:
    """A script, and what goes wrong with it."""

    def __init__(self, script: Script, flaws: Flaws) -> None:
        self.script, self.faults = script, Faults(flaws.faults)
        self._flaws = flaws

    def answer(self, asked: Mapping[str, Any]) -> list[int]:
        """Ids of the answer; without a stop id where it is cut. Raises BadRequest."""
        try:
            return self.script.answer(asked["ids"], asked["stop_ids"], self._flaws.of(asked["key"]))
        except Unplayable as error:
            log.warning("call %s: %s", asked["key"], error)
            raise BadRequest(str(error)) from error


def application(scheduler: Scheduler, key: str, played: Played | None = None) -> web.Application:
    """The engine URL contract over a scheduler. A script says the answers; without one they are sampled."""
    app = web.Application(middlewares=[_guard(key)], client_max_size=BODY_BYTES)

    async def generate(request: web.Request) -> web.Response:
        asked = _asked(await _body(request), scheduler)
        said = None
        if played is not None:
            fault = played.faults.of(asked["key"])
            if fault is not None:
                return _failed(request, fault)
            said = played.answer(asked)
            asked["max_tokens"] = min(asked["max_tokens"], len(said))
        call = await scheduler.generate(**asked, said=said)
        choice = {
            "index": 0,
            "token_ids": call.ids,
            "logprobs": {"content": [{"logprob": logprob} for logprob in call.logprobs]},
            "finish_reason": call.finish_reason,
            "weight_versions": call.spans(),
        }
        if call.experts is not None:
            choice["routed_experts"] = text_of(call.experts)
        return web.json_response({"request_id": asked["key"], "choices": [choice]})

    async def tasks(request: web.Request) -> web.Response:
        if played is None:
            raise BadRequest("this engine samples its answers and knows no tasks")
        _told(played.script, await _body(request))
        return web.json_response({})

    async def score(request: web.Request) -> web.Response:
        ids = _ids(await _body(request), "token_ids", scheduler.vocab)
        if not 2 <= len(ids) <= scheduler.context:
            raise BadRequest(f"token_ids must be 2 to {scheduler.context}, not {len(ids)}")
        scored = scheduler.score(ids)
        told = {} if scored.experts is None else {"routed_experts": text_of(scored.experts)}
        return web.json_response({"logprobs": scored.logprobs, **told})

    async def load(request: web.Request) -> web.Response:
        body = await _body(request)
        path, version = body.get("path"), _count(body, "version", 0)
        if not isinstance(path, str):
            raise BadRequest("path must name a checkpoint folder")
        try:
            # Reading may take a while, so it is done beside the generation; taking the weights is a copy.
            scheduler.load(await asyncio.to_thread(read_weights, Path(path)), version)
        except ConfigError as error:
            raise BadRequest(str(error)) from error
        return web.json_response({"version": version})

    async def health(request: web.Request) -> web.Response:
        return web.json_response({"version": scheduler.version, "calls": scheduler.busy})

    async def pause(request: web.Request) -> web.Response:
        scheduler.pause()
        return web.json_response({})

    async def resume(request: web.Request) -> web.Response:
        scheduler.resume()
        return web.json_response({})

    app.add_routes(
        [
            web.post("/inference/v1/generate", generate),
            web.post("/tasks", tasks),
            web.post("/score", score),
            web.post("/load", load),
            web.get("/health", health),
            web.post("/pause", pause),
            web.post("/resume", resume),
        ]
    )
    return app


def _guard(key: str) -> Middleware:
    """Refuse strangers; tell callers what was wrong with their request."""
    expected = f"Bearer {key}".encode()

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not hmac.compare_digest(request.headers.get("Authorization", "").encode(), expected):
            return _error(401, "the engine's key is missing or wrong", "unauthorized")
        try:
            return await handler(request)
        except BadRequest as error:
            return _error(400, str(error), error.code)

    return guard


def _error(status: int, message: str, code: str) -> web.Response:
    return web.json_response({"error": {"message": message, "code": code}}, status=status)


async def _body(request: web.Request) -> dict[str, Any]:
    try:
        body = json.loads(await request.read())
    except ValueError as error:
        raise BadRequest(f"the body is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest("the body is no JSON object")
    return body


def _asked(body: dict[str, Any], scheduler: Scheduler) -> dict[str, Any]:
    """The arguments of `Scheduler.generate` that a request names."""
    key, ids, sampling = body.get("request_id"), _ids(body, "token_ids", scheduler.vocab), body.get("sampling_params")
    if not isinstance(key, str) or not key:
        raise BadRequest("request_id must be a string: the call's randomness is drawn from it")
    if not isinstance(sampling, dict):
        raise BadRequest("sampling_params must be an object")
    unknown = sorted(sampling.keys() - SAMPLING)
    if unknown or sampling.get("logprobs", 0) != 0 or sampling.get("ignore_eos", True) is not True:
        served = f"{sorted(SAMPLING)} with logprobs 0 and ignore_eos true"
        raise BadRequest(f"sampling_params: {served} are served, not {unknown or 'other values'}")
    temperature, stop_ids = sampling.get("temperature"), sampling.get("stop_token_ids", [])
    if not isinstance(temperature, int | float) or not 0 < temperature < float("inf"):
        raise BadRequest(f"temperature must be above 0, not {temperature!r}")
    if not isinstance(stop_ids, list) or not all(type(stop) is int for stop in stop_ids):
        raise BadRequest("stop_token_ids must be a list of integers")
    if len(ids) >= scheduler.context:
        reason = f"a prompt of {len(ids)} tokens leaves no room in a context of {scheduler.context}"
        raise BadRequest(reason, "context_length_exceeded")
    return {
        "key": key,
        "ids": ids,
        "temperature": float(temperature),
        "max_tokens": _count(sampling, "max_tokens", 1),
        "stop_ids": stop_ids,
    }


def _failed(request: web.Request, fault: Fault) -> web.Response:
    """As an engine fails that is overloaded, or dies."""
    if fault == "dropped" and request.transport is not None:
        request.transport.abort()
    return _error(503, "this try fails on purpose", "on_purpose")


def _told(script: Script, body: dict[str, Any]) -> None:
    try:
        script.expect([(task["instruction"], task["solution"]) for task in body["tasks"]])
    except (KeyError, TypeError) as error:
        raise BadRequest(f"tasks must be a list of objects with instruction and solution: {error!r}") from error
    except Unplayable as error:
        raise BadRequest(str(error)) from error


def _count(body: dict[str, Any], name: str, least: int) -> int:
    value = body.get(name)
    if type(value) is not int or value < least:
        raise BadRequest(f"{name} must be an integer of at least {least}, not {value!r}")
    return value


def _ids(body: dict[str, Any], name: str, vocab: int) -> list[int]:
    ids = body.get(name)
    if not isinstance(ids, list) or not ids:
        raise BadRequest(f"{name} must be a list of token ids")
    wrong = [token for token in ids if type(token) is not int or not 0 <= token < vocab]
    if wrong:
        raise BadRequest(f"{name}: {wrong[0]!r} is no id of a vocabulary of {vocab}")
    return ids
