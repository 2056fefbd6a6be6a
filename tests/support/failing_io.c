/* Loaded before libc (LD_PRELOAD): counts what a process does with files below a folder, and fails it from the n-th on.

   fail_io(home, aside, n, error, for_ever): arm; paths below `aside` do not count. io_count(): how many came up.
   list_io(fd): write the name and path of each that comes up, a line each.
   EMFILE is the answer to opens alone, ENOSPC to what may need room, every other error to all of them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPENS = 1, GROWS = 2, OTHER = 4 };
static char home[4096], aside[4096];
static long at, seen;
static int failure, ever, kinds, list = -1;

void fail_io(const char *in, const char *without, long n, int error, int for_ever) {
    snprintf(home, sizeof home, "%s/", in);
    snprintf(aside, sizeof aside, "%s/", without);
    at = n, failure = error, ever = for_ever, seen = 0;
    kinds = error == EMFILE ? OPENS : error == ENOSPC ? GROWS : OPENS | GROWS | OTHER;
}

long io_count(void) { return seen; }

void list_io(int fd) { list = fd; }

static void put_down(const char *name, const char *path);

#define fails(kind, path) fails_in(__func__, kind, path)
#define fails_fd(kind, fd, path) fails_fd_in(__func__, kind, fd, path)

static int fails_in(const char *function, int kind, const char *path) {
    if (!at || !(kind & kinds) || strncmp(path, home, strlen(home)) || !strncmp(path, aside, strlen(aside)))
        return 0;
    long now = __sync_add_and_fetch(&seen, 1);
    if (list >= 0)
        put_down(function, path + strlen(home));
    if (now != at && !(ever && now > at))
        return 0;
    errno = failure;
    return 1;
}

static int fails_fd_in(const char *function, int kind, int fd, const char *name) {
    char link[64], path[8192];
    if (!at)
        return 0;
    if (name && *name == '/')
        return fails_in(function, kind, name);
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    int before = errno;
    ssize_t size = readlink(link, path, 4096);
    errno = before;
    if (size <= 0)
        return 0;
    snprintf(path + size, sizeof path - size, "%s%s", name ? "/" : "", name ? name : "");
    return fails_in(function, kind, path);
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static void put_down(const char *name, const char *path) {
    char line[8192];
    int size = snprintf(line, sizeof line, "%s %s\n", name, path);
    NEXT(write)(list, line, size);
}

#define MODE mode_t mode = 0; if (flags & (O_CREAT | __O_TMPFILE)) { va_list more; va_start(more, flags); \
    mode = va_arg(more, int); va_end(more); }
#define KIND ((flags & O_CREAT ? GROWS : 0) | OPENS)
#define OPEN(name) int name(const char *path, int flags, ...) { MODE \
    return fails(KIND, path) ? -1 : NEXT(name)(path, flags, mode); }
#define OPENAT(name) int name(int fd, const char *path, int flags, ...) { MODE \
    return fails_fd(KIND, fd, path) ? -1 : NEXT(name)(fd, path, flags, mode); }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)

#define BY_FD(type, name, kind, parameters, given) type name parameters { \
    return fails_fd(kind, fd, 0) ? (type)-1 : NEXT(name) given; }
BY_FD(ssize_t, write, GROWS, (int fd, const void *data, size_t size), (fd, data, size))
BY_FD(ssize_t, pwrite, GROWS, (int fd, const void *data, size_t size, off_t place), (fd, data, size, place))
BY_FD(ssize_t, pwrite64, GROWS, (int fd, const void *data, size_t size, off64_t place), (fd, data, size, place))
BY_FD(ssize_t, writev, GROWS, (int fd, const struct iovec *parts, int count), (fd, parts, count))
BY_FD(ssize_t, sendfile, GROWS, (int fd, int from, off_t *place, size_t size), (fd, from, place, size))
BY_FD(ssize_t, sendfile64, GROWS, (int fd, int from, off64_t *place, size_t size), (fd, from, place, size))
BY_FD(int, ftruncate, GROWS, (int fd, off_t size), (fd, size))
BY_FD(int, ftruncate64, GROWS, (int fd, off64_t size), (fd, size))
BY_FD(int, fsync, GROWS, (int fd), (fd))
BY_FD(int, fdatasync, GROWS, (int fd), (fd))

size_t fwrite(const void *data, size_t size, size_t count, FILE *file) {
    return fails_fd(GROWS, fileno(file), 0) ? 0 : NEXT(fwrite)(data, size, count, file);
}

#define BY_PATH(name, kind, path, parameters, given) int name parameters { \
    return fails(kind, path) ? -1 : NEXT(name) given; }
BY_PATH(rename, GROWS, to, (const char *from, const char *to), (from, to))
BY_PATH(link, GROWS, to, (const char *from, const char *to), (from, to))
BY_PATH(symlink, GROWS, to, (const char *from, const char *to), (from, to))
BY_PATH(mkdir, GROWS, path, (const char *path, mode_t mode), (path, mode))
BY_PATH(unlink, OTHER, path, (const char *path), (path))
BY_PATH(rmdir, OTHER, path, (const char *path), (path))
BY_PATH(truncate, GROWS, path, (const char *path, off_t size), (path, size))
int unlinkat(int fd, const char *path, int flags) {
    return fails_fd(OTHER, fd, path) ? -1 : NEXT(unlinkat)(fd, path, flags);
}
