"""The project's own harness: `python -I -S builtin_program.py CONFIG.json`, a program in one file.

It talks to the model as any other harness does, over HTTP in the OpenAI chat dialect, runs the tool calls,
and ends when the model answers without one. It starts in some 30 ms: a rollout of a small model takes little
longer, so nothing is imported that a plain run does not use.

The last line on stdout is a JSON object of counts. Exit status: 0 the model answered, 3 a limit on turns or
context ended it, 4 the model said nothing or only a broken tool call, 1 an error, its reason on stderr.
"""

# Paths stay strings: pathlib would add a quarter to the start.
# ruff: noqa: PTH103, PTH118, PTH120, PTH123

import _socket  # `socket` would add `selectors` to the start
import json
import os
import sys


def schema(name, description, *arguments):
    """A tool as the model is told of it. Every word costs tokens in every call."""
    parameters = {
        "type": "object",
        "properties": {argument: {"type": "string"} for argument in arguments},
        "required": list(arguments),
    }
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


SCHEMAS = {
    "read": schema("read", "Read a file.", "path"),
    "write": schema("write", "Write a file.", "path", "content"),
    "edit": schema("edit", "Replace text in a file.", "path", "old", "new"),
    "ls": schema("ls", "List a folder.", "path"),
    "exec": schema("exec", "Run a shell command.", "command"),
    "spawn": schema("spawn", "Give a task to a helper.", "task"),
}


class Overflow(Exception):
    """The prompt does not fit the model's context."""


class Refused(Exception):
    """A tool call that could not be carried out; its text is what the model sees."""


def tunnel(host):
    """TLS to `host` through the proxy that the environment names, trusting whom the environment says."""
    import base64
    import socket
    import ssl
    from urllib.parse import unquote, urlsplit

    proxy = urlsplit(os.environ["HTTPS_PROXY"])
    credentials = base64.b64encode(unquote(proxy.netloc.rpartition("@")[0]).encode()).decode()
    connection = socket.create_connection((proxy.hostname, proxy.port))
    head = f"CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\nProxy-Authorization: Basic {credentials}\r\n\r\n"
    connection.sendall(head.encode())
    answer = b""
    while not answer.endswith(b"\r\n\r\n"):  # not a byte further: the next one is TLS
        answer += connection.recv(1) or sys.exit(f"the proxy ended the connection: {answer!r}")
    if answer.split()[1] != b"200":
        sys.exit(f"the proxy refuses {host}: {answer.decode('latin-1').strip()}")
    return ssl.create_default_context().wrap_socket(connection, server_hostname=host)


class Wire:
    """One HTTP/1.1 connection to the model, kept open between calls."""

    def __init__(self, config):
        self.config = config
        self.socket: _socket.socket | None = None
        self.buffer = b""

    def post(self, body):
        """Send one chat request. Returns (status, content type, body)."""
        data = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nHost: model\r\nContent-Type: application/json\r\n"
            f"Authorization: Bearer {self.config['key']}\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        reused = self.socket is not None
        try:
            self.connected().sendall(head.encode() + data)
            return self.response()
        except (ConnectionError, BrokenPipeError):
            if not reused:
                raise
        # A kept connection may have been closed before this request; a fresh one tells a real fault.
        self.close()
        return self.post(body)

    def connected(self):
        if self.socket is not None:
            return self.socket
        if self.config["socket"]:
            self.socket = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
            self.socket.connect(self.config["socket"])
            return self.socket
        scheme, _, authority = self.config["url"].rstrip("/").partition("://")
        if scheme == "https":
            self.socket = tunnel(authority)
            return self.socket
        host, _, port = authority.partition(":")
        self.socket = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
        self.socket.connect((host, int(port or 80)))
        return self.socket

    def close(self):
        if self.socket is not None:
            self.socket.close()
        self.socket, self.buffer = None, b""

    def response(self):
        lines = self.until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        headers = {}
        for line in lines[1:]:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip().lower()
        if headers.get("transfer-encoding") == "chunked":
            body = self.chunks()
        elif "content-length" in headers:
            body = self.exactly(int(headers["content-length"]))
        else:
            body = self.rest()
        if headers.get("connection") == "close":
            self.close()
        return int(lines[0].split()[1]), headers.get("content-type", ""), body

    def more(self):
        data = self.connected().recv(65536)
        if not data:
            raise ConnectionError("the model's connection ended in the middle of an answer")
        self.buffer += data

    def until(self, mark):
        while mark not in self.buffer:
            self.more()
        found, _, self.buffer = self.buffer.partition(mark)
        return found

    def exactly(self, size):
        while len(self.buffer) < size:
            self.more()
        found, self.buffer = self.buffer[:size], self.buffer[size:]
        return found

    def chunks(self):
        parts = []
        while size := int(self.until(b"\r\n").split(b";")[0], 16):
            parts.append(self.exactly(size))
            self.exactly(2)
        while self.until(b"\r\n"):  # trailers
            pass
        return b"".join(parts)

    def rest(self):
        parts = [self.buffer]
        while data := self.connected().recv(65536):
            parts.append(data)
        self.close()
        return b"".join(parts)


def joined(stream):
    """The message, finish reason and usage that a stream of events adds up to."""
    message, finish, usage = {"role": "assistant", "content": None}, None, None
    for line in stream.decode().split("\n"):
        if not line.startswith("data:") or line[5:].strip() == "[DONE]":
            continue
        event = json.loads(line[5:])
        usage = event.get("usage") or usage
        for choice in event.get("choices", ()):
            finish = choice.get("finish_reason") or finish
            extend(message, choice.get("delta") or {})
    if finish is None:
        raise ConnectionError("the model's stream ended before its last event")
    return {"choices": [{"message": message, "finish_reason": finish}], "usage": usage}


def extend(message, delta):
    """Add one streamed piece to a message."""
    for key in ("content", "reasoning_content"):
        if delta.get(key):
            message[key] = (message.get(key) or "") + delta[key]
    for piece in delta.get("tool_calls") or ():
        calls = message.setdefault("tool_calls", [])
        while len(calls) <= piece["index"]:
            calls.append({"id": "", "type": "function", "function": {"name": "", "arguments": ""}})
        call, function = calls[piece["index"]], piece.get("function") or {}
        call["id"] = piece.get("id") or call["id"]
        call["function"]["name"] += function.get("name") or ""
        call["function"]["arguments"] += function.get("arguments") or ""


class Tools:
    """What the model can do to the workspace. Paths may not leave it, not even through a link."""

    def __init__(self, config):
        self.config = config
        self.root = os.path.realpath(config["workspace"])

    def path(self, name):
        full = os.path.realpath(os.path.join(self.root, name))
        if full != self.root and not full.startswith(self.root + "/"):
            raise Refused("path is outside the folder")
        return full

    def read(self, path):
        with open(self.path(path), encoding="utf-8", errors="replace") as file:
            return file.read(self.config["output_chars"])

    def write(self, path, content):
        full = self.path(path)
        os.makedirs(os.path.dirname(full), exist_ok=True)
        with open(full, "w", encoding="utf-8") as file:
            file.write(content)
        return "ok"

    def edit(self, path, old, new):
        full = self.path(path)
        with open(full, encoding="utf-8") as file:
            text = file.read()
        if text.count(old) != 1:
            raise Refused(f"old text found {text.count(old)} times, not once")
        return self.write(path, text.replace(old, new))

    def ls(self, path="."):
        entries = sorted(os.scandir(self.path(path)), key=lambda entry: entry.name)
        names = "\n".join(entry.name + "/" * entry.is_dir() for entry in entries)
        return names[: self.config["output_chars"]]

    def exec(self, command):
        import subprocess  # only runs that use it pay for it

        run = subprocess.Popen(
            ["sh", "-c", command],
            cwd=self.root,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            output, note = run.communicate(timeout=self.config["exec_s"])[0], ""
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, 9)
            output, note = run.communicate()[0], f"\n[killed after {self.config['exec_s']:g} s]"
        text = output.decode("utf-8", "replace")[-self.config["output_chars"] :]
        return text + note + (f"\n[exit {run.returncode}]" if run.returncode else "")


class Loop:
    """The conversation, its helpers and its counts."""

    def __init__(self, config):
        self.config = config
        self.wire = Wire(config)
        self.tools = Tools(config)
        names = ("turns", "tool_calls", "tool_errors", "compactions", "malformed_retries", "subagents")
        self.counts = dict.fromkeys(names, 0)

    def call(self, messages, tools):
        """One model call. Returns (message, total tokens)."""
        config = self.config
        body = {"model": config["model"], "messages": messages, "max_tokens": config["max_tokens"]}
        if tools:
            body["tools"] = [SCHEMAS[name] for name in tools]
        if config["stream"]:
            body["stream"] = True
            body["stream_options"] = {"include_usage": True}
        status, kind, data = self.wire.post(body)
        if status == 400 and b"context_length_exceeded" in data:
            raise Overflow
        if status != 200:
            raise ConnectionError(f"the model answered {status}: {data[:500].decode(errors='replace')}")
        reply = joined(data) if "event-stream" in kind else json.loads(data)
        return reply["choices"][0]["message"], (reply.get("usage") or {}).get("total_tokens", 0)

    def converse(self, system, task, tools):
        """Talk until the model answers. Returns (why it ended, the answer)."""
        config = self.config
        messages = opening(system, task)
        for _ in range(config["max_turns"]):
            try:
                message, used = self.call(messages, tools)
            except Overflow:
                if not config["compaction"] or len(messages) <= 2:
                    return "context", ""
                messages = opening(system, self.compacted(task, messages))
                continue
            self.counts["turns"] += 1
            messages.append(message)
            text = message.get("content") or ""
            if message.get("tool_calls"):
                messages += [self.answered(call, tools) for call in message["tool_calls"]]
            elif "tool_call>" in text:
                if not config["retry_malformed"]:
                    return "malformed", text
                self.counts["malformed_retries"] += 1
                messages.append({"role": "user", "content": "Broken tool call. Try again."})
            else:
                return ("done" if text.strip() else "empty"), text
            if config["compaction"] and used > config["compact_at"] * config["context"]:
                messages = opening(system, self.compacted(task, messages))
        return "turns", ""

    def compacted(self, task, messages):
        """The task, with a summary by the model of all that happened since."""
        self.counts["compactions"] += 1
        text = "\n".join(told(message) for message in messages[2:])
        while True:
            try:
                reply, _ = self.call(opening(self.config["compact_system"], f"{task}\n\n{text}"), ())
            except Overflow:
                if not text:
                    raise
                text = text[(len(text) + 1) // 2 :]
                continue
            return f"{task}\n\nSo far: {reply.get('content') or ''}"

    def answered(self, call, tools):
        """Carry out one tool call. Returns the message that tells the model how it went."""
        self.counts["tool_calls"] += 1
        name = call["function"]["name"]
        try:
            if name not in tools:
                raise Refused(f"no tool {name!r}")
            arguments = json.loads(call["function"]["arguments"] or "{}")
            result = self.spawn(**arguments) if name == "spawn" else getattr(self.tools, name)(**arguments)
        except ConnectionError:  # a helper has lost the model; that is nothing to tell the model
            raise
        except (Refused, OSError, ValueError, TypeError, AttributeError) as error:
            self.counts["tool_errors"] += 1
            result = f"error: {said(error)}"
        return {"role": "tool", "tool_call_id": call["id"], "content": result}

    def spawn(self, task):
        """Let a helper with a conversation of its own do a part of the task."""
        self.counts["subagents"] += 1
        tools = [name for name in self.config["tools"] if name != "spawn"]
        ended, answer = self.converse(self.config["subagent_system"], task, tools)
        if ended != "done":
            raise Refused(f"helper ended early: {ended}")
        return answer


def opening(system, task):
    """The first messages of a conversation."""
    return [{"role": "system", "content": system}, {"role": "user", "content": task}]


def told(message):
    """A message as plain text."""
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    text = " ".join(f"{function['name']} {function['arguments']}" for function in calls)
    return f"{message['role']}: {message.get('content') or ''}{text}"


def said(error):
    """A short reason that the model can act on."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error)


EXIT = {"done": 0, "turns": 3, "context": 3, "empty": 4, "malformed": 4}


def main(path):
    """Run one task. Returns the exit status."""
    with open(path, encoding="utf-8") as file:
        config = json.load(file)
    loop = Loop(config)
    try:
        ended, _ = loop.converse(config["system"], config["task"], config["tools"])
    except Overflow:
        ended = "context"
    except (OSError, ValueError, KeyError) as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    sys.stdout.write(json.dumps({**loop.counts, "ended": ended}) + "\n")
    return EXIT[ended]


if __name__ == "__main__":
    status = main(sys.argv[1])
    sys.stdout.flush()
    os._exit(status)
