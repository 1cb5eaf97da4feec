/*
 * How fast messages go from one MPI process to another one.
 *
 *   mpiexec -n 2 mpi BYTES SECONDS
 *
 * Prints GB/s: as many messages at once as `millrace bench message` has, each into memory of its own, both ends done.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Messages at once. Of long ones it is one, in the same memory again and again, as the others have it. */
#define MOST 4
#define LONG (8 << 20)

int main(int count, char **words)
{
    int rank, ranks;
    long rounds = 0;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (count != 3 || ranks != 2) {
        fprintf(stderr, "mpiexec -n 2 mpi BYTES SECONDS\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    size_t size = strtoull(words[1], NULL, 10);
    double seconds = strtod(words[2], NULL), begin = 0, took;
    int depth = size >= LONG ? 1 : MOST;
    uint8_t *memory[MOST];
    MPI_Request requests[MOST];
    for (int at = 0; at < depth; at++) {
        memory[at] = malloc(size);
        if (memory[at] == NULL)
            MPI_Abort(MPI_COMM_WORLD, 1);
        memset(memory[at], at + 1, size);
    }
    /* The first rounds do not count. The receiver learns from the sender whether there is another one. */
    for (int goes_on = 1; goes_on; rounds++) {
        if (rounds == 2)
            begin = MPI_Wtime();
        for (int at = 0; at < depth; at++)
            if (rank == 0)
                MPI_Isend(memory[at], (int)size, MPI_BYTE, 1, at, MPI_COMM_WORLD, &requests[at]);
            else
                MPI_Irecv(memory[at], (int)size, MPI_BYTE, 0, at, MPI_COMM_WORLD, &requests[at]);
        MPI_Waitall(depth, requests, MPI_STATUSES_IGNORE);
        goes_on = rounds < 3 || MPI_Wtime() - begin < seconds;
        MPI_Bcast(&goes_on, 1, MPI_INT, 0, MPI_COMM_WORLD);
    }
    took = MPI_Wtime() - begin;
    if (rank == 0)
        printf("%.3f\n", (double)(rounds - 2) * depth * (double)size / took / 1e9);
    MPI_Finalize();
    return 0;
}
