/* SPDX-License-Identifier: Apache-2.0 OR MIT
 *
 * stranger PLUGIN ARGUMENT...: loads a plugin for itself alone, as Python does with extension modules, and runs its
 * main. The libraries that the plugin needs are not in the global scope then.
 */
#include <dlfcn.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    int (*run)(int, char **);
    void *plugin = argc > 1 ? dlopen(argv[1], RTLD_NOW | RTLD_LOCAL) : NULL;

    if (!plugin) {
        fprintf(stderr, "%s\n", argc > 1 ? dlerror() : "usage: stranger PLUGIN ARGUMENT...");
        return 2;
    }
    *(void **)&run = dlsym(plugin, "main");
    return run(argc - 1, argv + 1);
}
