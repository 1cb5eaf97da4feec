/*
 * What MPI programs do, every byte checked: messages around a ring, all to all, and windows (put, get, fetch and add).
 *
 *   mpiexec -n 4 mpi [LONGEST]    bytes of the longest message, 1 MiB by default
 *
 * Prints "ranks N ok" and ends with 0 if everything arrived as it was sent.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static int rank, ranks;

static void *room(size_t size)
{
    void *memory = calloc(1, size);
    if (memory == NULL) {
        fprintf(stderr, "no memory for %zu bytes\n", size);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    return memory;
}

/* The byte that rank `from` has at `at` for rank `to` in round `round`. */
static uint8_t byte_of(int from, int to, size_t at, size_t round)
{
    uint32_t x = (uint32_t)at * 2654435761u + (uint32_t)from * 97u + (uint32_t)to * 31u + (uint32_t)round * 7u;
    return (uint8_t)(x >> 13 ^ x);
}

static void fill(uint8_t *bytes, size_t count, int from, int to, size_t round)
{
    for (size_t at = 0; at < count; at++)
        bytes[at] = byte_of(from, to, at, round);
}

static void check(const char *what, const uint8_t *bytes, size_t count, int from, int to, size_t round)
{
    for (size_t at = 0; at < count; at++) {
        if (bytes[at] != byte_of(from, to, at, round)) {
            fprintf(stderr, "%s: rank %d: byte %zu of %zu from rank %d is wrong\n", what, rank, at, count, from);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
}

static void ring(size_t longest)
{
    int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    uint8_t *out = room(longest), *in = room(longest);
    for (size_t count = 4; count <= longest; count *= 4) {
        fill(out, count, rank, next, count);
        MPI_Sendrecv(out, (int)count, MPI_BYTE, next, 1, in, (int)count, MPI_BYTE, previous, 1, MPI_COMM_WORLD,
                     MPI_STATUS_IGNORE);
        check("ring", in, count, previous, rank, count);
    }
    free(out);
    free(in);
}

static void all_to_all(size_t longest)
{
    uint8_t *out = room(longest * ranks), *in = room(longest * ranks);
    for (size_t count = 16; count <= longest; count *= 16) {
        for (int to = 0; to < ranks; to++)
            fill(out + to * count, count, rank, to, count);
        MPI_Alltoall(out, (int)count, MPI_BYTE, in, (int)count, MPI_BYTE, MPI_COMM_WORLD);
        for (int from = 0; from < ranks; from++)
            check("all to all", in + from * count, count, from, rank, count);
    }
    free(out);
    free(in);
}

static void windows(size_t longest)
{
    int next = (rank + 1) % ranks, previous = (rank + ranks - 1) % ranks;
    uint8_t *shared, *own = room(longest);
    int64_t *sum, one = 1, before;
    MPI_Win bytes, number;
    MPI_Win_allocate((MPI_Aint)longest, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &shared, &bytes);
    MPI_Win_allocate(sizeof *sum, sizeof *sum, MPI_INFO_NULL, MPI_COMM_WORLD, &sum, &number);
    *sum = 0;

    MPI_Win_fence(0, bytes);
    fill(own, longest, rank, next, 1);
    MPI_Put(own, (int)longest, MPI_BYTE, next, 0, (int)longest, MPI_BYTE, bytes);
    MPI_Win_fence(0, bytes);
    check("put", shared, longest, previous, rank, 1);
    MPI_Get(own, (int)longest, MPI_BYTE, next, 0, (int)longest, MPI_BYTE, bytes);
    MPI_Win_fence(0, bytes);
    check("get", own, longest, rank, next, 1);

    MPI_Barrier(MPI_COMM_WORLD);
    for (int time = 0; time < 10; time++) {
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, number);
        MPI_Fetch_and_op(&one, &before, MPI_INT64_T, 0, 0, MPI_SUM, number);
        MPI_Win_unlock(0, number);
        if (before < time || before >= 10 * ranks) {
            fprintf(stderr, "fetch and add: rank %d: %lld at time %d\n", rank, (long long)before, time);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
    }
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0) {
        MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, number);
        if (*sum != 10 * ranks) {
            fprintf(stderr, "fetch and add: %lld instead of %d\n", (long long)*sum, 10 * ranks);
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        MPI_Win_unlock(0, number);
    }
    MPI_Win_free(&number);
    MPI_Win_free(&bytes);
    free(own);
}

int main(int count, char **words)
{
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    size_t longest = count > 1 ? strtoul(words[1], NULL, 10) : 1 << 20;
    ring(longest);
    all_to_all(longest / 4);
    windows(longest);
    MPI_Barrier(MPI_COMM_WORLD);
    if (rank == 0)
        printf("ranks %d ok\n", ranks);
    MPI_Finalize();
    return 0;
}
