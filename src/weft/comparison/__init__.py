"""Comparing models fairly: a study solves widths, tunes with equal effort, runs with paired seeds, and judges.

    settings, study              what a study's file may say, and how it is read
    contestants, matching        the models of a study, and the widths that meet its budget
    texts, folder                its held-out text, and the files of its folder
    study_runner, trials         its course: the search for learning rates, then the runs
    jobs, launch, work           one piece of work: its record, its process, and what is done in it
    measures, progress           what is measured of a trained model, and how far a study is
    results, study_result        what was measured, as plain data, of a model and of the study
    student, statistics          Student's t, intervals and tests
    looks                        how often a growing study may be judged, and at which level
    verdict, findings            which models differ, and what can be concluded
    power                        what a study can show, and what its looks cost
    protocol, assemble           what a reader must know, and the result put together
    report                       the page that shows it
    ratings                      ratings of models from pairwise preferences, which need no study
"""
