/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * replay LIBRARY DEVICE FILE...: does what the register traces (crates/nfb/tests/traces) say, each with a device of its
 * own, and says where the answers differ. Exit code 0: nowhere.
 */
#include "loader.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST = 4096, LINE = 3 * LONGEST + 64 };

/* One line of a trace. */
struct access {
    char kind;
    unsigned long address;
    size_t length;
    unsigned char bytes[LONGEST];
    unsigned char known[LONGEST];
};

static const char *file;
static int line_number, failures;

static void wrong(const char *what)
{
    fprintf(stderr, "%s:%d: %s\n", file, line_number, what);
    failures++;
}

static void print_bytes(const char *word, const unsigned char *bytes, const unsigned char *known, size_t count)
{
    fprintf(stderr, "  %s", word);
    for (size_t i = 0; i < count; i++)
        if (!known || known[i])
            fprintf(stderr, " %02x", bytes[i]);
        else
            fprintf(stderr, " ..");
    fputc('\n', stderr);
}

/* The bytes behind the colon: how many, or -1 if it is something else. */
static long parse_bytes(const char *text, struct access *access)
{
    long count = 0;

    for (;;) {
        char *end;

        while (isspace((unsigned char)*text))
            text++;
        if (!*text)
            return count;
        if (count == LONGEST)
            return -1;
        access->known[count] = strncmp(text, "..", 2) != 0;
        access->bytes[count] = access->known[count] ? (unsigned char)strtoul(text, &end, 16) : 0;
        if (access->known[count] && end != text + 2)
            return -1;
        text += 2;
        count++;
    }
}

/* 0 for a line without an access, -1 for one that is not of a trace. */
static int parse(const char *line, struct access *access)
{
    const char *colon = strchr(line, ':');
    char *end;
    long count;

    while (isspace((unsigned char)*line))
        line++;
    if (!*line || *line == '#')
        return 0;
    access->kind = *line;
    if ((access->kind != 'R' && access->kind != 'W') || !colon)
        return -1;
    access->address = strtoul(line + 1, &end, 16);
    count = parse_bytes(colon + 1, access);
    if (access->kind == 'R')
        access->length = strtoul(end, &end, 10);
    else
        access->length = (size_t)count;
    return end == colon && count >= 0 && (size_t)count == access->length ? 1 : -1;
}

static void replay_read(struct nfb_comp *bus, const struct access *access)
{
    unsigned char got[LONGEST];
    ssize_t result;

    memset(got, 0xa5, sizeof got);
    result = comp_read(bus, got, access->length, (off_t)access->address);
    if (result != (ssize_t)access->length) {
        wrong("cannot be read");
        return;
    }
    for (size_t i = 0; i < access->length; i++)
        if (access->known[i] && got[i] != access->bytes[i]) {
            wrong("another answer");
            print_bytes("expected", access->bytes, access->known, access->length);
            print_bytes("got     ", got, NULL, access->length);
            return;
        }
}

static void replay_write(struct nfb_comp *bus, const struct access *access)
{
    const unsigned char *bytes = access->length ? access->bytes : NULL;

    if (comp_write(bus, bytes, access->length, (off_t)access->address) != (ssize_t)access->length)
        wrong("cannot be written");
}

static int replay_lines(FILE *trace, struct nfb_comp *bus)
{
    static char line[LINE];
    static struct access access;
    int accesses = 0;

    for (line_number = 1; fgets(line, sizeof line, trace); line_number++) {
        int is_access = parse(line, &access);

        if (is_access < 0)
            wrong("not a line of a trace");
        if (is_access <= 0)
            continue;
        accesses++;
        if (access.kind == 'R')
            replay_read(bus, &access);
        else
            replay_write(bus, &access);
    }
    return accesses;
}

static void replay(const char *library, const char *device)
{
    FILE *trace = fopen(file, "r");
    struct nfb_device *dev = device_open(library, device);
    struct nfb_comp *bus = dev ? comp_open(dev, "netcope,bus,mi", 0) : NULL;
    int before = failures, accesses;

    line_number = 0;
    if (!trace || !bus) {
        wrong(trace ? "no card, or no bus" : strerror(errno));
        exit(2);
    }
    accesses = replay_lines(trace, bus);
    if (!accesses)
        wrong("no access");
    printf("%-40s %4d accesses, %d wrong\n", strrchr(file, '/') ? strrchr(file, '/') + 1 : file, accesses,
           failures - before);
    fclose(trace);
    comp_close(bus);
    device_close(dev);
}

int main(int argc, char **argv)
{
    if (argc < 4) {
        fprintf(stderr, "usage: replay LIBRARY DEVICE FILE...\n");
        return 2;
    }
    for (int i = 3; i < argc; i++) {
        file = argv[i];
        replay(argv[1], argv[2]);
    }
    return failures != 0;
}
