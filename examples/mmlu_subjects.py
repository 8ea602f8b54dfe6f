# SPDX-License-Identifier: Apache-2.0
"""The fields of MMLU (Hendrycks et al., "Measuring Massive Multitask Language Understanding", 2021): which of its 57
subjects belong to a field, and which fields to a category."""

FIELDS = {
    "math": ("abstract_algebra", "college_mathematics", "elementary_mathematics", "high_school_mathematics",
             "high_school_statistics"),
    "health": ("anatomy", "clinical_knowledge", "college_medicine", "human_aging", "medical_genetics", "nutrition",
               "professional_medicine", "virology"),
    "physics": ("astronomy", "college_physics", "conceptual_physics", "high_school_physics"),
    "business": ("business_ethics", "management", "marketing"),
    "biology": ("college_biology", "high_school_biology"),
    "chemistry": ("college_chemistry", "high_school_chemistry"),
    "computer science": ("college_computer_science", "computer_security", "high_school_computer_science",
                         "machine_learning"),
    "economics": ("econometrics", "high_school_macroeconomics", "high_school_microeconomics"),
    "engineering": ("electrical_engineering",),
    "philosophy": ("formal_logic", "logical_fallacies", "moral_disputes", "moral_scenarios", "philosophy",
                   "world_religions"),
    "other": ("global_facts", "miscellaneous", "professional_accounting"),
    "history": ("high_school_european_history", "high_school_us_history", "high_school_world_history", "prehistory"),
    "geography": ("high_school_geography",),
    "politics": ("high_school_government_and_politics", "public_relations", "security_studies", "us_foreign_policy"),
    "psychology": ("high_school_psychology", "professional_psychology"),
    "culture": ("human_sexuality", "sociology"),
    "law": ("international_law", "jurisprudence", "professional_law"),
}

CATEGORIES = {
    "STEM": ("physics", "chemistry", "biology", "computer science", "math", "engineering"),
    "humanities": ("history", "philosophy", "law"),
    "social sciences": ("politics", "culture", "economics", "geography", "psychology"),
    "other (business, health, misc.)": ("other", "business", "health"),
}
