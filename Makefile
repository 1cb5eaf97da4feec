# Everything that is done here, by name. `make` alone lists it.
#
# CARGO_TARGET_DIR says where to build (default: target).

SHELL := /bin/bash
# One command at a time: cargo and the tests use all cores themselves.
.NOTPARALLEL:

export CARGO_TARGET_DIR ?= $(CURDIR)/target
RUN := . scripts/env.sh && find_rust &&
BUILT := $(CARGO_TARGET_DIR)/release
TO = $(DESTDIR)$(or $(PREFIX),/usr/local)

help: ## say what there is
	@echo "Millrace: a software accelerator card. Targets:"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | column -t -s '|'

demo: build ## a capture through a card and back, every byte compared; latencies and a histogram
	@$(CARGO_TARGET_DIR)/release/millrace demo

test: ## everything that must pass: formatting, lints, tests, models, fuzzers, sanitizers, end to end
	@scripts/test.sh

bench: build ## how fast it is, beside DPDK, a bare ring and a cache line (installs DPDK when run as root)
	@scripts/setup.sh --bench
	@scripts/bench.sh

soak: build ## kill programs and scribble on their memory for SOAK_SECONDS (default 3600): nothing may leak, nobody be hurt
	@scripts/soak.sh

build: setup ## target/release/millrace, and the extension library for libnfb beside it
	@$(RUN) cargo build --release --locked
	@ln -f $(BUILT)/libnfb_ext_millrace.so $(BUILT)/libnfb-ext-millrace.so

install: build ## copy millrace, libmillrace and libnfb-ext-millrace to PREFIX (default /usr/local)
	install -D -m 755 $(BUILT)/millrace $(TO)/bin/millrace
	install -D -m 755 $(BUILT)/libnfb-ext-millrace.so $(TO)/lib/libnfb-ext-millrace.so
	install -D -m 644 $(BUILT)/libmillrace.so $(TO)/lib/libmillrace.so.0
	ln -sf libmillrace.so.0 $(TO)/lib/libmillrace.so
	install -D -m 644 $(BUILT)/libmillrace.a $(TO)/lib/libmillrace.a
	install -D -m 644 include/millrace.h $(TO)/include/millrace.h
	install -D -m 644 crates/c/millrace.pc $(TO)/lib/pkgconfig/millrace.pc

setup: ## install what is missing (Debian packages, as root)
	@scripts/setup.sh

lint: ## formatting, clippy, documentation, where unsafe is, licences
	@scripts/test.sh setup format clippy doc header unsafe licences documents

unit: ## unit and integration tests only
	@scripts/test.sh setup unit

loom: ## the rings and the sleep protocol under a model checker
	@scripts/test.sh setup loom

fuzz: ## every fuzz target for FUZZ_SECONDS (default 10)
	@scripts/test.sh setup fuzz

sanitize: ## tests of the memory and the rings under AddressSanitizer, or Valgrind
	@scripts/test.sh setup sanitize

end-to-end: ## the scenarios in tests/cases through the built program
	@scripts/test.sh setup build end-to-end

header: ## include/millrace.h again, after a change of crates/c/src/boundary.rs
	@scripts/header.sh include/millrace.h

doc: setup ## API documentation in target/doc
	@$(RUN) cargo doc --workspace --no-deps --locked
	@echo "$(CARGO_TARGET_DIR)/doc/millrace/index.html"

clean: ## remove what was built
	@$(RUN) cargo clean
	@$(MAKE) -s -C bench/peers clean
	@$(MAKE) -s -C bench/nfb clean

.PHONY: help demo test bench soak build install setup lint unit loom fuzz sanitize end-to-end header doc clean
