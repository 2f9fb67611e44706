# Helpers of the build: what a room is, what a test is, and the compiler rules that all of them share.

add_library(ferry_flags INTERFACE)
target_compile_options(ferry_flags INTERFACE
    -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla
    -Wformat=2 -Wundef -Wpointer-arith -Werror
    -ffp-contract=off -fno-fast-math -fvisibility=hidden -fno-strict-aliasing)
target_compile_definitions(ferry_flags INTERFACE _GNU_SOURCE)
# Paths in error texts and in the binary are relative to the source tree: builds are reproducible.
target_compile_options(ferry_flags INTERFACE -fmacro-prefix-map=${CMAKE_SOURCE_DIR}/=)
target_compile_definitions(ferry_flags INTERFACE $<$<CONFIG:Debug>:FERRY_DEBUG=1>)
if(FERRY_SANITIZE)
    target_compile_options(ferry_flags INTERFACE
        -fsanitize=${FERRY_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
    target_link_options(ferry_flags INTERFACE -fsanitize=${FERRY_SANITIZE})
    target_compile_definitions(ferry_flags INTERFACE FERRY_DEBUG=1 FERRY_SANITIZED=1)
endif()

set_property(GLOBAL PROPERTY FERRY_ROOMS "")
set_property(GLOBAL PROPERTY FERRY_TEST_NAMES "")

# ferry_room(name SOURCES a.c ... [DEPS room ...] [LIBS target ...] [AVX2 file.c ...])
# DEPS are other rooms; tools/check_rooms.py checks the includes against the arrow list in it.
function(ferry_room name)
    cmake_parse_arguments(ARG "" "" "SOURCES;DEPS;LIBS;AVX2" ${ARGN})
    if(ARG_UNPARSED_ARGUMENTS)
        message(FATAL_ERROR "ferry_room(${name}): unknown arguments ${ARG_UNPARSED_ARGUMENTS}")
    endif()
    add_library(ferry_${name} STATIC ${ARG_SOURCES} ${ARG_AVX2})
    target_include_directories(ferry_${name} PUBLIC ${CMAKE_SOURCE_DIR}/include ${CMAKE_SOURCE_DIR}/src)
    target_link_libraries(ferry_${name} PRIVATE ferry_flags)
    foreach(dep IN LISTS ARG_DEPS)
        target_link_libraries(ferry_${name} PUBLIC ferry_${dep})
    endforeach()
    target_link_libraries(ferry_${name} PUBLIC ${ARG_LIBS})
    if(ARG_AVX2)
        set_source_files_properties(${ARG_AVX2} PROPERTIES COMPILE_OPTIONS "-mavx2;-mfma;-mf16c")
    endif()
    set_property(GLOBAL APPEND PROPERTY FERRY_ROOMS ${name})
endfunction()

# ferry_test(name SOURCES a.c ... ROOMS room ... LABELS label ... [TIMEOUT s] [ARGS ...]): the test itself, then
# what it shares with others. That is compiled once, with the rooms and libraries of the first test that names
# it and nothing that is set on a test afterwards.
function(ferry_test name)
    cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;ROOMS;LABELS;ARGS;LIBS" ${ARGN})
    if(ARG_UNPARSED_ARGUMENTS)
        message(FATAL_ERROR "ferry_test(${name}): unknown arguments ${ARG_UNPARSED_ARGUMENTS}")
    endif()
    list(TRANSFORM ARG_ROOMS PREPEND ferry_)
    list(POP_FRONT ARG_SOURCES source)
    add_executable(${name} ${source})
    set(compiled ${name})
    foreach(source IN LISTS ARG_SOURCES)
        get_filename_component(path ${source} ABSOLUTE)
        file(RELATIVE_PATH path ${CMAKE_SOURCE_DIR} ${path})
        string(MAKE_C_IDENTIFIER shared_${path} shared)
        if(NOT TARGET ${shared})
            add_library(${shared} OBJECT ${source})
            list(APPEND compiled ${shared})
        endif()
        target_sources(${name} PRIVATE $<TARGET_OBJECTS:${shared}>)
    endforeach()
    foreach(target IN LISTS compiled)
        target_link_libraries(${target} PRIVATE ferry_flags PkgConfig::CMOCKA ${ARG_LIBS} ${ARG_ROOMS})
        target_compile_definitions(${target} PRIVATE FERRY_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
        target_include_directories(${target} PRIVATE ${CMAKE_SOURCE_DIR})
    endforeach()
    add_test(NAME ${name} COMMAND ${name} ${ARG_ARGS})
    if(NOT ARG_TIMEOUT)
        set(ARG_TIMEOUT 60)
    endif()
    # Tests ask for more memory than there is and want NULL, also under a sanitizer's allocator. UCX's
    # hooks into memory calls run at a thread's end, where the thread sanitizer no longer can.
    set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT ${ARG_TIMEOUT} ENVIRONMENT
        "ASAN_OPTIONS=allocator_may_return_null=1;TSAN_OPTIONS=allocator_may_return_null=1;UCX_MEM_EVENTS=n")
    set_property(GLOBAL APPEND PROPERTY FERRY_TEST_NAMES ${name})
endfunction()

function(ferry_print_summary)
    get_property(rooms GLOBAL PROPERTY FERRY_ROOMS)
    get_property(tests GLOBAL PROPERTY FERRY_TEST_NAMES)
    list(LENGTH tests n_tests)
    list(JOIN rooms " " rooms)
    message(STATUS "ferry ${PROJECT_VERSION}")
    message(STATUS "  compiler     ${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}, ${CMAKE_BUILD_TYPE}")
    message(STATUS "  rooms        ${rooms}")
    message(STATUS "  sanitizers   ${FERRY_SANITIZE}")
    message(STATUS "  tests        ${FERRY_TESTS} (${n_tests})")
    message(STATUS "  benchmarks   ${FERRY_BENCH}")
    message(STATUS "  fuzzers      ${FERRY_FUZZ}")
    message(STATUS "  libraries    jansson ${JANSSON_VERSION}, pcre2 ${PCRE2_VERSION}, "
                   "utf8proc ${UTF8PROC_VERSION}, libcrypto ${CRYPTO_VERSION}")
endfunction()
