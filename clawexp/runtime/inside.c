/* Process 1 of a sandbox: `inside DRIVER [PORT PROXY]`. Runs the driver's commands, one after another.

   DRIVER is the number of an inherited descriptor, or the path of a unix socket. On that stream the driver sends orders:
   four bytes of length (big-endian), then fields that each end with a zero byte: the working directory, the number of
   arguments, the arguments, the environment. Three descriptors come with them: input, output, errors. What goes back is
   framed alike: "S" once at the start, then for each order "C" and the status as a number (-N for signal N), or "E" and
   why there was no start. By then everything that the command has started is gone. An order of no length asks what is
   left of earlier commands but files: "T" and the number of shared memories, queues and semaphores comes back.

   With PORT, it listens on 127.0.0.1:PORT and carries each connection to the unix socket PROXY.

   Programs inside have the same user id. They cannot trace this one, nor see its memory: it is not dumpable. A signal
   from inside its process namespace does not reach it. When it ends, the kernel ends everything else in there. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define CONNECTIONS 256
#define CHUNK 65536
#define STREAMS 3

extern char **environ;

static int driver, children, listener = -1;
static const char *proxy;
static pid_t command;

static void die(const char *what) {
    fprintf(stderr, "inside: %s: %s\n", what, strerror(errno));
    _exit(1);
}

static void send_all(const char *data, size_t size) {
    while (size > 0) {
        ssize_t sent = send(driver, data, size, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent <= 0) _exit(1);
        data += sent, size -= (size_t)sent;
    }
}

static void report(const char *text) {
    uint32_t size = (uint32_t)strlen(text), header = htonl(size);
    send_all((char *)&header, sizeof header);
    send_all(text, size);
}

/* Read exactly so much of an order; descriptors that come with it go into `streams`. */
static void receive(char *data, size_t size, int *streams) {
    while (size > 0) {
        char control[CMSG_SPACE(STREAMS * sizeof(int))];
        struct iovec part = {data, size};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
        ssize_t got = recvmsg(driver, &message, MSG_CMSG_CLOEXEC);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) _exit(1); /* the driver is gone */
        for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
            if (c->cmsg_type == SCM_RIGHTS) memcpy(streams, CMSG_DATA(c), STREAMS * sizeof(int));
        data += got, size -= (size_t)got;
    }
}

static void become(char **argv, char **env, const int *streams) {
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    setsid();
    for (int number = 0; number < STREAMS; number++)
        if (dup2(streams[number], number) < 0) _exit(127);
    environ = env;
    execvp(argv[0], argv);
    dprintf(2, "%s: %s\n", argv[0], strerror(errno));
    _exit(127);
}

static char *next_field(char **rest, const char *end) {
    char *field = *rest, *zero = memchr(field, 0, (size_t)(end - field));
    if (!zero) errno = EBADMSG, die("order");
    *rest = zero + 1;
    return field;
}

static void start(char *order, size_t size, const int *streams) {
    char *rest = order, *end = order + size, *cwd = next_field(&rest, end);
    size_t fields = 0, count = strtoul(next_field(&rest, end), NULL, 10);
    for (const char *at = rest; at < end; at++) fields += !*at;
    char **words = calloc(fields + 2, sizeof *words);
    if (!words || !count || count > fields) errno = EBADMSG, die("order");
    for (size_t i = 0; i < fields; i++) words[i + (i >= count)] = next_field(&rest, end);
    char text[512];
    if (chdir(cwd) < 0) {
        snprintf(text, sizeof text, "E%.300s: %s", cwd, strerror(errno));
        report(text);
    } else if ((command = fork()) < 0) {
        snprintf(text, sizeof text, "Efork: %s", strerror(errno));
        report(text);
    } else if (command == 0) {
        become(words, words + count + 1, streams);
    }
    if (command < 0) command = 0;
    if (chdir("/") < 0) die("/");
    free(words);
}

static long entries_of(const char *path) {
    DIR *folder = opendir(path);
    long count = -2; /* itself and its parent */
    if (!folder) return errno == ENOENT ? 0 : 1;
    while (readdir(folder)) count++;
    closedir(folder);
    return count;
}

static long lines_of(const char *path) {
    FILE *file = fopen(path, "r");
    long count = -1; /* the heading */
    if (!file) return errno == ENOENT ? 0 : 1;
    for (int letter; (letter = getc(file)) != EOF;) count += letter == '\n';
    fclose(file);
    return count;
}

static void tell_left(void) {
    char text[32];
    long left = entries_of("/dev/shm") + entries_of("/dev/mqueue");
    left += lines_of("/proc/sysvipc/shm") + lines_of("/proc/sysvipc/sem") + lines_of("/proc/sysvipc/msg");
    snprintf(text, sizeof text, "T%ld", left);
    report(text);
}

static void take_order(void) {
    int streams[STREAMS] = {-1, -1, -1};
    uint32_t size;
    receive((char *)&size, sizeof size, streams);
    size = ntohl(size);
    if (!size) {
        tell_left();
        return;
    }
    char *order = malloc((size_t)size + 1);
    if (!order) die("order");
    receive(order, size, streams);
    start(order, size, streams);
    for (int number = 0; number < STREAMS; number++)
        if (streams[number] >= 0) close(streams[number]);
    free(order);
}

/* Everything that is orphaned inside comes here. When the command is over, so is all that it has left. */
static void reap(void) {
    struct signalfd_siginfo told;
    while (read(children, &told, sizeof told) > 0) {}
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) > 0;) {
        if (pid != command) continue;
        command = 0;
        do kill(-1, SIGKILL);
        while (waitpid(-1, NULL, 0) > 0 || errno == EINTR);
        char text[32];
        snprintf(text, sizeof text, "C%d", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
        report(text);
    }
}

/* One direction of a connection: what came from `from` and has not gone to `to` yet. */
struct flow {
    int from, to;
    size_t begin, end;
    int over; /* nothing more comes */
    char *data;
};
struct connection {
    int inner, outer;
    struct flow flows[2];
} connections[CONNECTIONS];
static int num_connections;

static void accept_one(void) {
    struct sockaddr_un there = {.sun_family = AF_UNIX};
    struct connection *c = &connections[num_connections];
    int one = 1, inner = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (inner < 0) return;
    int outer = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char *data = malloc(2 * CHUNK);
    strncpy(there.sun_path, proxy, sizeof there.sun_path - 1);
    if (outer < 0 || !data || connect(outer, (struct sockaddr *)&there, sizeof there) < 0) {
        close(inner), free(data);
        if (outer >= 0) close(outer);
        return;
    }
    fcntl(outer, F_SETFL, O_NONBLOCK);
    setsockopt(inner, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    *c = (struct connection){inner, outer, {{inner, outer, 0, 0, 0, data}, {outer, inner, 0, 0, 0, data + CHUNK}}};
    num_connections++;
}

static int broken(void) { return errno != EAGAIN && errno != EINTR; }

/* Move what can be moved; false when the connection is of no more use. */
static int move(struct flow *f) {
    if (f->begin == f->end && !f->over) {
        ssize_t got = recv(f->from, f->data, CHUNK, 0);
        if (got < 0 && broken()) return 0;
        if (got == 0) f->over = 1, shutdown(f->to, SHUT_WR);
        if (got > 0) f->begin = 0, f->end = (size_t)got;
    }
    if (f->begin < f->end) {
        ssize_t sent = send(f->to, f->data + f->begin, f->end - f->begin, MSG_NOSIGNAL);
        if (sent < 0) return !broken();
        f->begin += (size_t)sent;
    }
    return 1;
}

static void serve(struct connection *c) {
    if (move(&c->flows[0]) && move(&c->flows[1]) && !(c->flows[0].over && c->flows[1].over)) return;
    close(c->inner), close(c->outer), free(c->flows[0].data);
    c->inner = -1;
}

static short wanted(const struct connection *c, int inner) {
    const struct flow *in = &c->flows[!inner], *out = &c->flows[inner];
    return (short)((in->begin == in->end && !in->over ? POLLIN : 0) | (out->begin < out->end ? POLLOUT : 0));
}

static void carry(const struct pollfd *ready) {
    for (int i = 0; i < num_connections; i++)
        if (ready[2 * i].revents || ready[2 * i + 1].revents) serve(&connections[i]);
    int kept = 0;
    for (int i = 0; i < num_connections; i++)
        if (connections[i].inner >= 0) connections[kept++] = connections[i];
    num_connections = kept;
}

static void loop(void) {
    static struct pollfd polled[3 + 2 * CONNECTIONS];
    for (;;) {
        polled[0] = (struct pollfd){driver, POLLIN, 0};
        polled[1] = (struct pollfd){children, POLLIN, 0};
        polled[2] = (struct pollfd){num_connections < CONNECTIONS ? listener : -1, POLLIN, 0};
        for (int i = 0; i < num_connections; i++) {
            const struct connection *c = &connections[i];
            short inner = wanted(c, 1), outer = wanted(c, 0);
            /* A side that is waited for in no way would report its end again and again. */
            polled[3 + 2 * i] = (struct pollfd){inner ? c->inner : -1, inner, 0};
            polled[4 + 2 * i] = (struct pollfd){outer ? c->outer : -1, outer, 0};
        }
        if (poll(polled, (nfds_t)(3 + 2 * num_connections), -1) < 0) continue;
        carry(polled + 3);
        if (polled[1].revents) reap();
        if (polled[2].revents) accept_one();
        if (polled[0].revents) take_order();
    }
}

static void listen_on(const char *port) {
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(port))};
    here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&here, sizeof here) < 0 || listen(listener, 64) < 0) die(port);
}

static void call(const char *where) {
    if (where[0] != '/') {
        driver = atoi(where);
        fcntl(driver, F_SETFD, FD_CLOEXEC);
        return;
    }
    struct sockaddr_un there = {.sun_family = AF_UNIX};
    strncpy(there.sun_path, where, sizeof there.sun_path - 1);
    driver = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (driver < 0 || connect(driver, (struct sockaddr *)&there, sizeof there) < 0) die(where);
}

int main(int argc, char **argv) {
    if (argc != 2 && argc != 4) errno = EINVAL, die("usage: inside DRIVER [PORT PROXY]");
    if (getpid() != 1) errno = EPERM, die("it ends all processes that it can see, so it is process 1 of a sandbox or none");
    if (prctl(PR_SET_DUMPABLE, 0) < 0) die("prctl");
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    sigemptyset(&all);
    sigaddset(&all, SIGCHLD);
    children = signalfd(-1, &all, SFD_CLOEXEC | SFD_NONBLOCK);
    if (children < 0) die("signalfd");
    if (argc == 4) proxy = argv[3], listen_on(argv[2]);
    call(argv[1]);
    report("S");
    loop();
}
