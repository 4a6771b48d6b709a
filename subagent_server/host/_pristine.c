/* The part of pristine.py that must not be interrupted by the interpreter: it moves and drops memory that the
 * interpreter lives in. A plain library, called with the lock of the interpreter held, in a process with one
 * thread. Linux, 64 bits. Of Python it knows one thing: an object begins with the count of its references.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGE = 4096, WORDS = PAGE / sizeof(uint64_t) };

/* MADV_POPULATE_WRITE of Linux 5.14, which older headers do not have; older kernels refuse it. */
enum { POPULATE_WRITE = 23 };

/* The upper half of the reference count of an object that is never freed. No more than 60 bits: the garbage
 * collector has no room for more. The lower half begins in the middle, so that it neither runs over nor out. */
static const uint64_t MARK = UINT64_C(0x05A7F0E3);
static const uint64_t MIDDLE = UINT64_C(0x80000000);

/* A line of /proc/PID/pagemap (proc_pid_pagemap(5)): in memory, and not the file's own page. */
static int is_own_copy(uint64_t entry) { return (entry >> 63 & 1) && !(entry >> 61 & 1); }

static int is_marked(uint64_t count) { return count >> 32 == MARK; }

/* Mark the objects at these addresses as never freed; `fresh` tells which were not marked before. */
void pristine_mark(const uint64_t *objects, size_t number, uint8_t *fresh)
{
    for (size_t i = 0; i < number; i++) {
        uint64_t *count = (uint64_t *)(uintptr_t)objects[i];
        fresh[i] = !is_marked(*count);
        if (fresh[i])
            *count += (MARK << 32) + MIDDLE;
    }
}

/* Copy memory to where a file is mapped, but for pages of zeros, which a file has without being written to;
 * then map the file in the place of the memory. Return 0, or -1 where there is no room. */
int pristine_keep(char *begin, size_t size, char *kept, int file, int64_t offset)
{
    static const char zeros[PAGE];
    sigset_t all, before;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    for (size_t at = 0; at < size; at += PAGE)
        if (memcmp(begin + at, zeros, PAGE))
            memcpy(kept + at, begin + at, PAGE);
    char *placed = mmap(begin, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, file, offset);
    sigprocmask(SIG_SETMASK, &before, NULL);
    return placed == begin ? 0 : -1;
}

/* Whether a page is as it was, but for how often something refers to objects that are never freed. */
static int is_pristine(const uint64_t *now, const uint64_t *then)
{
    for (int i = 0; i < WORDS; i++)
        if (now[i] != then[i] && !(is_marked(now[i]) && is_marked(then[i])))
            return 0;
    return 1;
}

/* Drop the own copies of pages that are as they were: the process has the file's pages there again. `entries`
 * are the lines of the pagemap. Where a dropped row of pages begins and ends comes into `rows`, which has room
 * for a number for each page and one more. Return how many rows there are. */
size_t pristine_give_back(char *begin, const char *kept, const uint64_t *entries, size_t pages, uint64_t *rows)
{
    size_t dropped = 0, run = 0;
    sigset_t all, before; /* what a handler writes to a page that was just looked at would be lost */
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, &before);
    for (size_t i = 0; i <= pages; i++) {
        char *at = begin + i * PAGE;
        if (i < pages && is_own_copy(entries[i]) &&
            is_pristine((const uint64_t *)at, (const uint64_t *)(kept + i * PAGE))) {
            run++;
        } else if (run) {
            if (madvise(at - run * PAGE, run * PAGE, MADV_DONTNEED) == 0) {
                rows[2 * dropped] = (uintptr_t)(at - run * PAGE);
                rows[2 * dropped++ + 1] = (uintptr_t)at;
            }
            run = 0;
        }
    }
    sigprocmask(SIG_SETMASK, &before, NULL);
    return dropped;
}

/* Have own copies of these rows of pages again, all at once: one after the other would take longer. */
void pristine_take_again(const uint64_t *rows, size_t number)
{
    for (size_t i = 0; i < number; i++)
        madvise((char *)(uintptr_t)rows[2 * i], rows[2 * i + 1] - rows[2 * i], POPULATE_WRITE);
}
