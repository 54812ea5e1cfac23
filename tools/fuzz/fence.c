/* Memory with a fence, to be preloaded: what posix_memalign hands out (all tensors of PyTorch on the CPU) ends at a page that
   nobody may touch, begins behind another, and is never handed out again. So a read or write out of bounds, or after free,
   ends the process instead of passing unnoticed. The slack that alignment leaves is filled with a pattern and looked at by free.
   What is requested beyond a limit is refused, as on a machine with little memory. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096UL
#define ARENA (1UL << 42)
#define LIMIT (1UL << 31)
#define PATTERN 0xa5

struct block { size_t size, pages; char *start; };  /* on the page before the memory, which then is closed */

static char *arena, *next;
static size_t live;
static volatile int lock;
static void (*real_free)(void *);

static void take(void) { while (__sync_lock_test_and_set(&lock, 1)) { } }
static void leave(void) { __sync_lock_release(&lock); }
static int inside(const void *at) { return arena && (char *)at >= arena && (char *)at < arena + ARENA; }

int posix_memalign(void **out, size_t align, size_t size) {
    size_t pages = (size + PAGE - 1) / PAGE + (size == 0), slack;
    char *block, *start;
    if (size > LIMIT || align > PAGE) return ENOMEM;
    take();
    if (!arena) {
        arena = mmap(0, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (arena == MAP_FAILED) abort();
        next = arena + PAGE;
    }
    if (live + size > LIMIT || next + (pages + 2) * PAGE > arena + ARENA) { leave(); return ENOMEM; }
    block = next;
    next += (pages + 2) * PAGE;
    live += size;
    leave();
    if (mprotect(block, (pages + 1) * PAGE, PROT_READ | PROT_WRITE)) return ENOMEM;
    slack = (pages * PAGE - size) / align * align;
    start = block + PAGE + slack;
    memset(block + PAGE, PATTERN, slack);
    memset(start + size, PATTERN, pages * PAGE - slack - size);
    *(struct block *)block = (struct block){size, pages, start};
    mprotect(block, PAGE, PROT_READ);
    *out = start;
    return 0;
}

void free(void *at) {
    char *page, *byte;
    struct block *block;
    if (!inside(at)) {
        if (!real_free) real_free = (void (*)(void *))dlsym(RTLD_NEXT, "free");
        real_free(at);
        return;
    }
    for (page = (char *)((uintptr_t)at & ~(PAGE - 1)) - PAGE; ((struct block *)page)->start != at; page -= PAGE) { }
    block = (struct block *)page;
    for (byte = page + PAGE; byte < page + (block->pages + 1) * PAGE; byte++)
        if ((byte < block->start || byte >= block->start + block->size) && (unsigned char)*byte != PATTERN) abort();
    take();
    live -= block->size;
    leave();
    mmap(page, (block->pages + 1) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}
